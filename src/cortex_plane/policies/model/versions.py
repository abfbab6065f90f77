"""Versions of policy files, and the policies that a job brings with its request."""

from __future__ import annotations

import contextlib
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, LiteralString
from uuid import UUID

from pydantic import AfterValidator, Field, StrictBool, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.agents.model.tools import Confirmed, ToolName
from cortex_plane.kernel import fields as kernel_fields
from cortex_plane.kernel.canonical import canonical, check_text
from cortex_plane.kernel.conditions import MAX_LENGTH, Condition
from cortex_plane.kernel.errors import InvalidInput, MissingExtra
from cortex_plane.kernel.fields import DRAFT, ChannelType, Clearance, JsonObject, Moment, Name, Note, Ref, Risk, adapter
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.model.policies import PendingChange
from cortex_plane.tenancy.model.orgs import Role

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ROWS = 10_000
MAX_SHOWN_CHANGES = 200
MAX_SHOWN_ROWS = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedRow:
    """A row and where it stands: the org's own or a team's, in the order of the file."""

    level: policy_model.Level
    team_id: UUID | None
    """The id of its team; null for a policy of the org."""
    team: str | None
    """Its slug when the file was applied."""
    position: int
    """Its place in the file."""
    row: policy_model.PolicyRow
    """The policy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersion:
    version: int
    """Its number, counted from 1."""
    digest: str
    rows: int
    """How many policies it has."""
    note: str | None
    applied_by: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyVersionDetails:
    """One version with its rows and its file. Version 0 is the org before its first file."""

    version: int
    """Its number."""
    digest: str | None
    note: str | None
    applied_by: str | None
    created_at: datetime | None
    source: str
    """The file as it was applied."""
    total: int
    """How many policies it has."""
    rows: list[PlacedRow]
    """The first thousand."""
    platform: list[policy_model.PolicyRow]
    """The policies of the platform that limit it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlatformPolicies:
    """The rows that limit every org, and their version: the second number of a version of policies."""

    version: int
    """The number of the version."""
    rows: list[policy_model.PolicyRow]
    """The policies, in order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class FieldChange:
    field: str
    """The name of the field."""
    before: Any
    """Its value before."""
    after: Any
    """Its value after."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RowChange:
    """A row that was added, removed, changed or moved."""

    change: str
    """What happened to it: `added`, `removed` or `changed`."""
    level: policy_model.Level
    team: str | None
    name: str
    """The name of the policy."""
    fields: list[FieldChange]


@dataclass(frozen=True, kw_only=True, slots=True)
class PolicyDiff:
    added: int
    """How many policies were added."""
    removed: int
    """How many policies were removed."""
    changed: int
    """How many policies were changed."""
    changes: list[RowChange]
    """The first two hundred."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Applied:
    version: int
    """The version that holds now; with a dry run, the one that it would have become."""
    changed: bool
    dry_run: bool
    """Whether the file was only checked."""
    rows: int
    """How many policies the file has."""
    diff: PolicyDiff
    """What differs from the version before."""
    warnings: list[str]
    waits: PendingChange | None = None
    """Changes of policies need approval in this org: nothing changed yet, and the file holds once somebody else approves it."""


PolicyText = Annotated[str, StringConstraints(max_length=MAX_FILE_BYTES), Field(description="The file, in YAML.")]


@draft(config=DRAFT, frozen=True, kw_only=True)
class PolicyFile:
    """What a steward applies: the whole of an org's rows. What is not in it is gone, unless it is merged."""

    text: PolicyText
    dry_run: StrictBool = False
    note: Note | None = None
    expected_version: Annotated[int, Field(strict=True, ge=0, le=2**62)] | None = None
    """Refused where another version holds by now."""
    merge: StrictBool = False
    """Keep the policies that are not in it. One of the same name is replaced in its place; a new one follows the policy
    before it in the file, or comes first."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ExplainRequest:
    """A call that nobody made: what would be said about it?"""

    agent: Ref
    tool: TargetGlob
    arguments: JsonObject = Field(default_factory=dict)
    read_only: StrictBool | None = None
    """Where absent: as the tool was last published."""
    risk: Risk | None = None
    session_kind: Annotated[str, StringConstraints(pattern="^(conversation|programmatic|external)$")] = "programmatic"
    """The kind of session in which the call would be made."""
    policies: RequestPolicies = Field(default_factory=list)
    """Policies that the job would bring along."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explained:
    """The walk, and what it was asked about."""

    agent: str
    tool: str
    read_only: bool
    risk: Risk
    published: bool
    """Whether a worker has published this tool; where none has, the strictest is assumed."""
    explanation: policy_model.Explanation
    """What the policies say, and why."""


MAX_TERMS = 100
"""Tools of one question."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class ToolTerms:
    """A tool as an agent that runs elsewhere would declare it."""

    tool: ToolName
    read_only: StrictBool = False
    risk: Risk | None = None
    """Where absent, or below it: what is known of the tool."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class DeniedToolsRequest:
    """Which of these tools need nobody offer to this agent?"""

    agent: Ref
    tools: Annotated[list[ToolTerms], Field(max_length=MAX_TERMS)]


@dataclass(frozen=True, kw_only=True, slots=True)
class DeniedTools:
    denied: list[str]
    """Those of which the policies deny every call, whatever its arguments are. The others are judged when they are called."""


def of_platform(rows: Sequence[policy_model.PolicyRow]) -> list[PlacedRow]:
    level = policy_model.Level.PLATFORM
    return [
        PlacedRow(level=level, team_id=None, team=None, position=place, row=row) for place, row in enumerate(rows, 1)
    ]


def row_as_json(row: policy_model.PolicyRow) -> dict[str, Any]:
    result: dict[str, Any] = adapter(policy_model.PolicyRow).dump_python(row, mode="json")
    return result


def placed_as_json(row: PlacedRow) -> dict[str, Any]:
    """A row as it is stored: the names in it are looked up."""
    data: dict[str, Any] = adapter(PlacedRow).dump_python(row, mode="json")
    return {**data.pop("row"), **data}


def row_line(row: PlacedRow) -> bytes:
    """Canonical JSON. The digest of a version is the SHA-256 over the lines of its rows, in their order. Keys that earlier releases did
    not have are left out where they are null."""
    data = placed_as_json(row)
    if data["reason"] is None:
        del data["reason"]
    return canonical(data) + b"\n"


def rows_digest(rows: Iterable[PlacedRow]) -> str:
    return hashlib.sha256(b"".join(map(row_line, rows))).hexdigest()


def policy_set(
    version: str,
    entries: Iterable[PlacedRow],
    platform: Sequence[policy_model.PolicyRow],
    confirmed: Mapping[tuple[str, str, str], Confirmed] | None = None,
) -> policy_model.PolicySet:
    org: list[policy_model.PolicyRow] = []
    teams: dict[UUID, list[policy_model.PolicyRow]] = {}
    for entry in entries:
        (org if entry.team_id is None else teams.setdefault(entry.team_id, [])).append(entry.row)
    return policy_model.PolicySet(
        version=version,
        platform=tuple(platform),
        org=tuple(org),
        teams={id: tuple(rows) for id, rows in teams.items()},
        confirmed=confirmed or {},
    )


def merge_rows(before: Sequence[PlacedRow], rows: Sequence[PlacedRow]) -> list[PlacedRow]:
    """The rows of a file among those of before, which are kept. A row of the same name is replaced in its place; a new one
    follows the row before it in the file, or comes first in its level. Raises ``InvalidInput`` where they are too many."""
    old, new = _by_team(before), _by_team(rows)
    result = [
        row
        for team_id in dict.fromkeys((None, *old, *new))
        for row in _merge_level(old.get(team_id, ()), new.get(team_id, ()))
    ]
    if len(result) > MAX_ROWS:
        raise InvalidInput(
            f"There would be {len(result)} policies; the limit is {MAX_ROWS}.",
            hint="Remove some first: apply a whole file without `merge`.",
        )
    return [replace(row, position=position) for position, row in enumerate(result)]


def _by_team(rows: Iterable[PlacedRow]) -> dict[UUID | None, list[PlacedRow]]:
    teams: dict[UUID | None, list[PlacedRow]] = {}
    for row in rows:
        teams.setdefault(row.team_id, []).append(row)
    return teams


def _merge_level(before: Sequence[PlacedRow], rows: Sequence[PlacedRow]) -> Iterator[PlacedRow]:
    names = {row.row.name for row in before}
    replacing: dict[str, PlacedRow] = {}
    following: dict[str | None, list[PlacedRow]] = {}
    last: str | None = None
    for row in rows:
        if row.row.name in names:
            last = row.row.name
            replacing[last] = row
        else:
            following.setdefault(last, []).append(row)
    yield from following.get(None, ())
    for row in before:
        # Rows of a team that was renamed take its newest name.
        yield replacing.get(row.row.name) or (replace(row, team=rows[0].team) if rows else row)
        yield from following.get(row.row.name, ())


def difference(before: Sequence[PlacedRow], after: Sequence[PlacedRow]) -> PolicyDiff:
    """Rows are the same where level and name are; their order within a level counts too."""
    old, new = _by_name(before), _by_name(after)
    changes = []
    for key, (place, row) in new.items():
        if key not in old:
            changes.append(_change("added", row, []))
            continue
        was_place, was = old[key]
        differences = _fields(was.row, row.row)
        if was_place != place:
            differences.append(FieldChange(field="place", before=was_place, after=place))
        if differences:
            changes.append(_change("changed", row, differences))
    changes += [_change("removed", row, []) for key, (_, row) in old.items() if key not in new]
    counts = {"added": 0, "removed": 0, "changed": 0} | Counter(change.change for change in changes)
    if len(changes) > MAX_SHOWN_CHANGES:
        changes.sort(key=lambda change: change.change != "removed")  # what is gone is listed before what is cut off
    return PolicyDiff(**counts, changes=changes[:MAX_SHOWN_CHANGES])


def _by_name(placed_rows: Sequence[PlacedRow]) -> dict[tuple[UUID | None, str], tuple[int, PlacedRow]]:
    places: dict[UUID | None, int] = {}
    rows = {}
    for row in placed_rows:
        places[row.team_id] = place = places.get(row.team_id, 0) + 1
        rows[row.team_id, row.row.name] = (place, row)
    return rows


def _fields(before: policy_model.PolicyRow, after: policy_model.PolicyRow) -> list[FieldChange]:
    return [
        FieldChange(field=field.name, before=_plain(old), after=_plain(new))
        for field in fields(policy_model.PolicyRow)
        if (old := getattr(before, field.name)) != (new := getattr(after, field.name))
    ]


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int) else adapter(type(value)).dump_python(value)


def _change(change: str, row: PlacedRow, changes: list[FieldChange]) -> RowChange:
    return RowChange(change=change, level=row.level, team=row.team, name=row.row.name, fields=changes)


def placed(row: Mapping[str, Any]) -> PlacedRow:
    """A row as it is stored."""
    return kernel_fields.parse(PlacedRow, {**row, "row": dict(row)})


DEFAULT_CALLS, MAX_CALLS = 10_000, 100_000
DEFAULT_SECONDS, MAX_SECONDS = 7 * 86400, 366 * 86400


@draft(config=DRAFT, frozen=True, kw_only=True)
class SimulationRequest:
    """A policy file that is not applied, and the calls that it is tried on."""

    text: PolicyText
    since: Moment | None = None
    """From when on to look at calls."""
    within_seconds: Annotated[int, Field(strict=True, ge=1, le=MAX_SECONDS)] | None = None
    """So long before `until`, instead of `since`. Where both are absent: seven days."""
    until: Moment | None = None
    """Until when to look at calls; now, where it is left out."""
    limit: Annotated[int, Field(strict=True, ge=1, le=MAX_CALLS)] = DEFAULT_CALLS
    """How many calls at most, the newest first."""

    def __post_init__(self) -> None:
        if self.since is not None and self.within_seconds is not None:
            raise PydanticCustomError("one_of", "say `since` or `within_seconds`, not both")
        if self.since is not None and self.until is not None and self.since >= self.until:
            raise PydanticCustomError("empty_span", "`since` must be earlier than `until`")


class Direction(StrEnum):
    """How the verdict or its terms differ."""

    STRICTER = "stricter"
    LOOSER = "looser"
    OTHERWISE = "otherwise"
    """Neither, or both: other people decide, for example."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Judged:
    verdict: policy_model.PolicyVerdict
    """What they say about the calls."""
    rule: str
    """Without the version: level and name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Recorded:
    """What was answered about calls when they were made."""

    verdict: policy_model.PolicyVerdict | None
    rule: str | None
    calls: int
    """How many calls it was answered for."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChangeGroup:
    """Calls that would be judged otherwise, in the same way."""

    tool: str
    agent: str
    direction: Direction
    before: Judged
    """By the policies of now."""
    after: Judged
    """By the proposed file."""
    terms: list[str]
    """Which of the terms differ, where both ask people."""
    calls: int
    """How many calls they are."""
    recorded: list[Recorded]
    """As it was then, the most frequent first; at most three."""
    examples: list[UUID]
    """Ids of calls, the newest first; at most three."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimulationTotals:
    looked_at: int
    """How many calls were looked at."""
    unchanged: int
    """Calls with the same verdict and terms."""
    other_rule: int
    """Of the unchanged: another row says the same."""
    changed: int
    """Calls with another verdict or other terms."""
    stricter: int
    """Of the changed: those that are judged more strictly."""
    looser: int
    """Of the changed: those that are judged less strictly."""
    unknown: int
    """Calls that no policy is asked about: there is no such tool, or its arguments do not fit."""
    drifted: int
    """Calls of which the policies of now say another verdict than was recorded when they were made."""
    governed: int = 0
    """Calls of sessions under an atlas: its gates and policies, which judge them as well, were not looked at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Simulation:
    version: str
    """The policies that hold now, and that the file was compared with."""
    rows: int
    """How many policies the file has."""
    warnings: list[str]
    since: datetime
    """From when on calls were looked at."""
    until: datetime
    """Until when calls were looked at."""
    stopped: bool
    """There are more calls in this time: only the newest were looked at."""
    oldest: datetime | None
    """When the oldest call was made that was looked at."""
    totals: SimulationTotals
    """How many calls changed, and how."""
    groups: list[ChangeGroup]
    """The largest first; at most two hundred."""
    total_groups: int
    """How many groups there are in all."""
    left_out: list[str] = field(default_factory=list)
    """What judges some of these calls as well, and was not looked at."""


MAX_NAME = 100
MAX_TARGET = 200
MAX_REASON = 500
MAX_REQUEST_ROWS = 20
MAX_NAMED = 20
MAX_VOTES = 10
MAX_CHANNELS = 20
MAX_DETAILS_BYTES = 8 * 1024


def check_condition(text: str) -> None:
    """Here where it can be; the plane checks it in any case."""
    with contextlib.suppress(MissingExtra):
        Condition.of(check_text(text, "when"))


def _refused(value: object, code: LiteralString, why: LiteralString) -> AfterValidator:
    def check(field: Any) -> Any:
        if field is value:
            raise PydanticCustomError(code, why)
        return field

    return AfterValidator(check)


_NO_PERMISSION = _refused(
    policy_model.PolicyVerdict.ALLOW, "only_tightens", "must be requires_approval or deny: a request only tightens"
)
_ONLY_OFF = _refused(True, "only_tightens", "must be false: a request only tightens")
_NO_GUEST = _refused(Role.GUEST, "guest_role", "guests decide nothing")


def _small(details: dict[str, Any]) -> dict[str, Any]:
    size = len(canonical(details))
    if size > MAX_DETAILS_BYTES:
        raise PydanticCustomError(
            "too_large", "is {size} bytes; the limit is {limit}", {"size": size, "limit": MAX_DETAILS_BYTES}
        )
    return details


def _distinct(values: list[Any]) -> list[Any]:
    return list(dict.fromkeys(values))


Votes = Annotated[int, Field(strict=True, ge=1, le=MAX_VOTES)]
Seconds = Annotated[int, Field(strict=True, ge=1, le=policy_model.MAX_TIMEOUT_SECONDS)]
SecondsOrNever = Annotated[int, Field(strict=True, ge=0, le=policy_model.MAX_TIMEOUT_SECONDS)]
TargetGlob = Annotated[str, StringConstraints(min_length=1, max_length=MAX_TARGET, pattern=r"^[^\x00-\x20\x7f]+$")]
RowName = Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]


@draft(config=DRAFT, frozen=True, kw_only=True)
class QuorumDraft:
    """How many must say yes; by role, so many of them with that role."""

    votes: Votes | None = None
    """Where absent: as many as the roles need."""
    roles: dict[Annotated[Role, _NO_GUEST], Votes] = Field(default_factory=dict)
    """How many of the votes must have each role."""

    def __post_init__(self) -> None:
        if self.votes is not None and any(votes > self.votes for votes in self.roles.values()):
            raise PydanticCustomError("too_few_votes", "a role asks for more votes than there are in all")


def quorum_of(votes: int | None, roles: Mapping[Role, int]) -> policy_model.Quorum:
    return policy_model.Quorum(
        votes=votes if votes is not None else max(roles.values(), default=1),
        roles=tuple(policy_model.RoleVotes(role=role, votes=role_votes) for role, role_votes in sorted(roles.items())),
    )


@draft(config=DRAFT, frozen=True, kw_only=True)
class RequestPolicy:
    """A row that one job brings along. It only tightens what holds anyway."""

    name: RowName
    """Its name, unique among the policies of the request."""
    target: TargetGlob
    effect: Annotated[policy_model.PolicyVerdict, _NO_PERMISSION]
    """What it says about the calls that it matches."""
    when: (
        Annotated[str, StringConstraints(max_length=MAX_LENGTH), kernel_fields.refused_as("condition", check_condition)]
        | None
    ) = None
    """A condition in CEL; left out, it matches each call of the target."""
    clearance: Clearance | None = None
    """The clearance that an approver needs."""
    template: policy_model.Template | None = None
    timeout_seconds: Seconds | None = None
    """How long its approvers have."""
    remind_before_seconds: Seconds | None = None
    """So long before the deadline its approvers are reminded."""
    on_deny: policy_model.OnDeny | None = None
    self_approval: StrictBool | None = None
    quorum: Votes | QuorumDraft | None = None
    escalate_before_seconds: SecondsOrNever | None = None
    """0 for never."""
    channels: Annotated[list[ChannelType], Field(max_length=MAX_CHANNELS), AfterValidator(_distinct)] | None = None
    """The only channels that carry the request, besides the dashboard."""
    standing: Annotated[StrictBool, _ONLY_OFF] | None = None
    approvers: Annotated[list[UUID], Field(min_length=1, max_length=MAX_NAMED), AfterValidator(_distinct)] | None = None
    """Ids of members: of those who may decide, only these are asked; where no policy says who decides, these do."""
    action: Name | None = None
    """What is to happen, in one line; shown to whoever decides."""
    details: Annotated[JsonObject, AfterValidator(_small)] | None = None
    """What its approvers see besides."""

    def as_row(self) -> policy_model.PolicyRow:
        values: dict[str, Any] = {_COLUMNS.get(name, name): getattr(self, name) for name in self.__dataclass_fields__}
        values |= {name: tuple(values[name]) for name in ("channels", "named") if values[name] is not None}
        if isinstance(self.quorum, QuorumDraft):
            values["quorum"] = quorum_of(self.quorum.votes, self.quorum.roles)
        elif self.quorum is not None:
            values["quorum"] = policy_model.Quorum(votes=self.quorum)
        return policy_model.PolicyRow(**values)


_COLUMNS = {
    "when": "condition", "clearance": "required_clearance", "remind_before_seconds": "reminder_seconds",
    "escalate_before_seconds": "escalation_seconds", "approvers": "named",
}  # fmt: skip
"""Fields of a request's policy that a row has under another name."""


RequestPolicies = Annotated[list[RequestPolicy], Field(max_length=MAX_REQUEST_ROWS)]
