"""Reads a policy file, and checks it against the people of the org and the levels above it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar
from uuid import NAMESPACE_OID, UUID, uuid5

from cortex_plane.kernel.conditions import Condition
from cortex_plane.kernel.documents import (
    Bounds,
    Faults,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    read_document,
    write_document,
)
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.shapes import (
    Amount,
    Duration,
    Field,
    Flag,
    ListOf,
    OneOf,
    Reading,
    Record,
    Shape,
    Text,
    UnreadNode,
)
from cortex_plane.policies.model import places, versions
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.rules.engine import LevelIndex
from cortex_plane.policies.rules.terms import ADMINS, own_term, resolve_terms
from cortex_plane.tenancy.model.identities import KNOWN_CHANNELS
from cortex_plane.tenancy.model.orgs import Role

HINT = "Correct the file and apply it again; nothing was changed. Its format is in docs/guides/policies.md."
BOUNDS = Bounds(versions.MAX_FILE_BYTES)
INSTEAD = {
    "votes": "`quorum`",
    "escalation": "`escalate_before` and `escalate_to`",
    "escalate": "`escalate_before` and `escalate_to`",
    "delegates": "`approvers`: each of them may delegate",
}
ACTIONS = (policy_model.TOOL_CALL,)
MAX_LIST = 100
MAX_MEMBER_NAME = 1000
MAX_STEPS = 10

_FLAG, _NODE = Field(Flag()), Field(UnreadNode())
_BEFORE = Field(Duration(policy_model.MAX_TIMEOUT_SECONDS, zero=("never", "0")))
_VOTES = Amount(1, versions.MAX_VOTES, whole=True, digits=True)
_ROLE = OneOf(tuple(role for role in Role if role is not Role.GUEST), name="a role")
_CHANNEL = Text(50, r"[a-z][a-z0-9_-]*", "a name in lower case, such as email or slack", name="a channel")
_PLACE = Text(
    places.MAX_ADDRESS, r"[^\x00-\x1f\x7f]+", "a text such as #deploys or acme/shop#12", name="a place", visible=True
)
_PLACE_RECORD = Record("place", "a place", {
    "connection": Field(Text(versions.MAX_NAME, r"[^:\x00-\x1f\x7f]+", "the name of a connection, without a colon", visible=True)),
    "place": Field(_PLACE),
})  # fmt: skip


class _ChannelOrPlace(Shape):
    """`email`, `{slack: "#deploys"}` or `{slack: {connection: NAME, place: "#deploys"}}`."""

    def read(self, node: Node, key: str, reading: Reading) -> str | None:
        if not isinstance(node, MappingNode):
            return _CHANNEL.read(node, key, reading)
        if len(node.items) != 1:
            return reading.fault(node.line, 'a place must have one channel: {slack: "#deploys"}.')
        ((channel, inner),) = node.items.items()
        if channel not in places.PLACE_CHANNELS:
            known = ", ".join(places.PLACE_CHANNELS)
            return reading.fault(node.line, f"`{channel[:50]}` has no shared places; {known} have some.")
        if not isinstance(inner, MappingNode):
            address = _PLACE.read(inner, key, reading)
            return None if address is None else places.Place(channel=channel, address=address).entry
        values = _PLACE_RECORD.read(inner, key, reading) or {}
        if "place" not in inner.items:
            return reading.fault(inner.line, f"this place of {channel} has no `place`.")
        if values.get("place") is None:
            return None
        return places.Place(channel=channel, address=values["place"], connection=values.get("connection")).entry


OF_APPROVALS = {
    "template": Field(OneOf(tuple(policy_model.Template))),
    "clearance": Field(Amount(0, 1000, whole=True, digits=True)),
    "approvers": _NODE,
    "timeout": Field(Duration(policy_model.MAX_TIMEOUT_SECONDS)),
    "remind_before": _BEFORE,
    "on_deny": Field(OneOf(tuple(policy_model.OnDeny))),
    "self_approval": _FLAG,
    "quorum": _NODE,
    "escalate_before": _BEFORE,
    "escalate_to": _NODE,
    "channels": Field(ListOf(_ChannelOrPlace(), most=MAX_LIST)),
    "standing": _FLAG,
}
"""Keys of policies whose effect is requires_approval."""
FILE = Record("file", "the file", {"policies": _NODE, "teams": _NODE})
POLICY = Record("policy", "a policy", {
    "name": Field(Text(versions.MAX_NAME, r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, dots, dashes and underscores")),
    "action": _NODE,
    "target": Field(Text(versions.MAX_TARGET, r"[^\x00-\x20\x7f]+", "the name of a tool, with * for anything", visible=True)),
    "when": _NODE,
    "effect": Field(OneOf(tuple(policy_model.PolicyVerdict))),
    "final": _FLAG,
    "reason": Field(Text(versions.MAX_REASON, visible=True)),
    **OF_APPROVALS,
})  # fmt: skip
APPROVERS = {
    "owner": _FLAG,
    "roles": Field(ListOf(_ROLE, most=MAX_LIST)),
    "members": Field(ListOf(Text(MAX_MEMBER_NAME), most=MAX_LIST)),
}
QUORUM = Record("quorum", "`quorum`", {"votes": Field(_VOTES), "roles": _NODE})

MAX_WARNINGS = 50
STANDS_IN = frozenset({Role.ADMIN, Role.APPROVER})
"""Who decides for the owner of a session that has none."""
_IN_TOOL_NAMES = re.compile(r"[a-z0-9_.*]*")
Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """An active member, as far as deciding needs."""

    id: UUID
    name: str
    clearance: int
    roles: frozenset[Role]


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A row before the names in it were looked up."""

    line: int
    team: str | None
    row: policy_model.PolicyRow
    members: tuple[str, ...]
    """Names or ids; the row's own approvers hold none yet."""
    steps: tuple[tuple[str, ...], ...] = ()
    """The same for each step of its escalation."""


@dataclass(frozen=True, slots=True)
class Draft:
    rows: list[DraftRow]
    team_lines: dict[str, int]


def policy_faults() -> Faults:
    return Faults(code="invalid_policy_file", hint=HINT)


def read(text: str) -> Draft:
    """Raises ``InvalidInput`` that names every line at fault."""
    faults = policy_faults()
    root = read_document(text, faults, BOUNDS, "a policy file has the key `policies` (a list), `teams`, or both.")
    draft = _Reader(faults).read_file(root)
    faults.raise_any()
    return draft


def write(rows: Iterable[versions.PlacedRow]) -> str:
    """The file of which `read` and `place` make these rows; members are named by their ids."""
    teams: dict[str, list[dict[str, Any]]] = {}
    policies: list[dict[str, Any]] = []
    for row in rows:
        level = policies if row.team is None else teams.setdefault(row.team, [])
        level.append({key: value for key, value in _written(row.row).items() if value is not None})
    return write_document({"policies": policies, **({"teams": teams} if teams else {})})


def _written(row: policy_model.PolicyRow) -> dict[str, Any]:
    quorum, steps = row.quorum, row.escalate_to
    return {
        "name": row.name, "target": row.target, "when": row.condition, "effect": str(row.effect),
        "final": row.final or None, "template": row.template and str(row.template), "clearance": row.required_clearance,
        "approvers": row.approvers and _written_approvers(row.approvers),
        "timeout": _written_time(row.timeout_seconds), "remind_before": _written_time(row.reminder_seconds),
        "on_deny": row.on_deny and str(row.on_deny), "self_approval": row.self_approval,
        "quorum": quorum and {
            "votes": quorum.votes, **({"roles": {str(each.role): each.votes for each in quorum.roles}} if quorum.roles else {}),
        },
        "escalate_before": _written_time(row.escalation_seconds),
        "escalate_to": None if steps is None else [_written_approvers(step) for step in steps],
        "channels": None if row.channels is None else [*map(_written_channel, row.channels)], "standing": row.standing, "reason": row.reason,
    }  # fmt: skip


def _written_approvers(approvers: policy_model.Approvers) -> dict[str, Any]:
    names = {"roles": [*map(str, approvers.roles)], "members": [*map(str, approvers.members)]}
    return ({"owner": True} if approvers.owner else {}) | {key: value for key, value in names.items() if value}


def _written_channel(entry: str) -> str | dict[str, Any]:
    place = places.read_place(entry)
    if place is None:
        return entry
    if place.connection is None:
        return {place.channel: place.address}
    return {place.channel: {"connection": place.connection, "place": place.address}}


def _written_time(seconds: int | None) -> str | None:
    return None if seconds is None else f"{seconds}s" if seconds else "never"


def place(draft: Draft, teams: Mapping[str, UUID], people: list[Person]) -> tuple[list[versions.PlacedRow], list[int]]:
    """The rows with teams and members looked up, and the line of each."""
    faults = policy_faults()
    for slug, line in draft.team_lines.items():
        if slug not in teams:
            slugs = ", ".join(sorted(teams)[:20]) or "none"
            faults.add(line, f"there is no team `{slug}`; there are {slugs}.")
    directory = _Directory(people, faults)
    rows = []
    for position, entry in enumerate(draft.rows):
        row = entry.row
        if entry.members:
            members = directory.find_all(entry.members, entry.line)
            row = replace(row, approvers=replace(row.approvers or policy_model.Approvers(), members=members))
        if any(entry.steps) and row.escalate_to is not None:
            steps = zip(row.escalate_to, entry.steps, strict=True)
            levels = (replace(step, members=directory.find_all(names, entry.line)) for step, names in steps)
            row = replace(row, escalate_to=tuple(levels))
        team_id = teams.get(entry.team) if entry.team is not None else None
        level = policy_model.Level.ORG if entry.team is None else policy_model.Level.TEAM
        rows.append(versions.PlacedRow(level=level, team_id=team_id, team=entry.team, position=position, row=row))
    faults.raise_any()
    return rows, [entry.line for entry in draft.rows]


def read_alone(text: str | None, teams: Sequence[str] = ()) -> tuple[policy_model.PolicySet, list[UUID]]:
    """The policies of a file as a new plane would hold them, and the ids of these teams. Without a plane nobody knows its teams
    and people: those that the file names stand for themselves."""
    if text is None:
        return policy_model.PolicySet(platform=policy_model.FIRST_PLATFORM_ROWS), []
    draft = read(text)
    names = {name for entry in draft.rows for part in (entry.members, *entry.steps) for name in part}
    people = [
        Person(id=split_ref(name)[0] or _stand_in(name), name=name, clearance=0, roles=frozenset()) for name in names
    ]
    rows, _ = place(draft, {slug: _stand_in(slug) for slug in draft.team_lines}, people)
    return versions.policy_set("1.1", rows, policy_model.FIRST_PLATFORM_ROWS), [_stand_in(slug) for slug in teams]


def _stand_in(name: str) -> UUID:
    return uuid5(NAMESPACE_OID, name)


def place_for_platform(draft: Draft) -> tuple[list[versions.PlacedRow], list[str]]:
    """The rows of a file for the platform, and what seems odd about them. It names nothing that belongs to one org."""
    faults = policy_faults()
    for slug, line in draft.team_lines.items():
        faults.add(
            line,
            f"`{slug}` is a team of an org, and the platform's policies hold in every org: `teams` has no place here.",
        )
    for entry in draft.rows:
        if entry.members or any(entry.steps):
            faults.add(entry.line, "the platform's policies name no members: say `roles`, or `owner`.")
    faults.raise_any()
    rows = versions.of_platform([entry.row for entry in draft.rows])
    return rows, [f"line {draft.rows[place].line}: {message}" for place, message in _shadowed(rows)]


class _Directory:
    """The active members, by id and by name."""

    def __init__(self, people: Iterable[Person], faults: Faults) -> None:
        self._faults = faults
        self._ids: set[UUID] = set()
        self._by_name: dict[str, list[UUID]] = {}
        for person in people:
            self._ids.add(person.id)
            self._by_name.setdefault(person.name, []).append(person.id)

    def find_all(self, names: Iterable[str], line: int) -> tuple[UUID, ...]:
        ids = (self._find(name, line) for name in names)
        return tuple(dict.fromkeys(id for id in ids if id is not None))

    def _find(self, name: str, line: int) -> UUID | None:
        id, _ = split_ref(name)
        if id is not None:
            if id in self._ids:
                return id
            self._faults.add(line, f"there is no active member with the id {id}.")
            return None
        ids = self._by_name.get(name, [])
        if len(ids) == 1:
            return ids[0]
        if ids:
            self._faults.add(line, f"{len(ids)} members are called `{name}`: use an id, for example {ids[0]}.")
        else:
            self._faults.add(line, f"there is no active member called `{name}`.")
        return None


class _Reader:
    def __init__(self, faults: Faults) -> None:
        self._reading = Reading(faults, INSTEAD)
        self._fault = faults.add
        self._rows: list[DraftRow] = []

    def read_file(self, root: MappingNode) -> Draft:
        lines: dict[str, int] = {}
        sections = FILE.read(root, "file", self._reading) or {}
        if "policies" in sections:
            self._read_level(sections["policies"], None)
        teams = sections.get("teams")
        if isinstance(teams, MappingNode):
            lines.update(teams.lines)
            for slug, rows in teams.items.items():
                self._read_level(rows, slug)
        elif teams is not None:
            self._fault(teams.line, "`teams` must be a mapping from a team's slug to its list of policies.")
        return Draft(self._rows, lines)

    def _read_level(self, node: Node, team: str | None) -> None:
        if not isinstance(node, ListNode):
            where = f"the policies of {team}" if team else "`policies`"
            self._fault(node.line, f"{where} must be a list; an empty one is [].")
            return
        names: dict[str, int] = {}
        for item in node.items:
            if len(self._rows) >= versions.MAX_ROWS:
                self._fault(item.line, f"the file has more than {versions.MAX_ROWS} policies.")
                return
            if not isinstance(item, MappingNode):
                self._fault(item.line, "a policy must be a mapping with a name, a target and an effect.")
                continue
            self._read_row(item, team)
            name = item.items.get("name")
            if isinstance(name, ScalarNode):
                first = names.setdefault(name.text, item.line)
                if first != item.line:
                    self._fault(name.line, f"the name `{name.text[:100]}` is taken by line {first}.")

    def _read_row(self, item: MappingNode, team: str | None) -> None:
        values = POLICY.read(item, "policies", self._reading) or {}
        for key in ("name", "target", "effect"):
            if key not in item.items:
                self._fault(item.line, f"this policy has no `{key}`.")
        action = values.get("action")
        if action is not None and (not isinstance(action, ScalarNode) or action.text not in ACTIONS):
            self._fault(action.line, f"`action` must be one of {', '.join(ACTIONS)}.")
        approvers, members = self._read_approvers(values.get("approvers"), "approvers")
        escalate_to, steps = self._read_steps(values.get("escalate_to"))
        channels = values.get("channels")
        row = policy_model.PolicyRow(
            name=values.get("name") or "",
            action_type=policy_model.TOOL_CALL,
            target=values.get("target") or "",
            effect=policy_model.PolicyVerdict(values.get("effect") or policy_model.PolicyVerdict.DENY),
            condition=self._read_condition(values.get("when")),
            required_clearance=values.get("clearance"),
            template=_choice(policy_model.Template, values.get("template")),
            timeout_seconds=values.get("timeout"),
            reminder_seconds=values.get("remind_before"),
            approvers=approvers,
            on_deny=_choice(policy_model.OnDeny, values.get("on_deny")),
            self_approval=values.get("self_approval"),
            final=bool(values.get("final")),
            channels=None if channels is None else tuple(dict.fromkeys(filter(None, channels))),
            quorum=self._read_quorum(values.get("quorum")),
            escalation_seconds=values.get("escalate_before"),
            escalate_to=escalate_to,
            standing=values.get("standing"),
            reason=(values.get("reason") or "").strip() or None,
        )
        self._check_row(item, row, values.get("effect"))
        self._rows.append(DraftRow(item.line, team, row, members, steps))

    def _check_row(self, item: MappingNode, row: policy_model.PolicyRow, effect: str | None) -> None:
        if effect in (policy_model.PolicyVerdict.ALLOW, policy_model.PolicyVerdict.DENY):
            for key in OF_APPROVALS:
                if key in item.items:
                    self._fault(
                        item.lines[key], f"`{key}` is for policies whose effect is requires_approval, not {effect}."
                    )
        timeout = own_term(row, "timeout_seconds")
        if places.count_places(row.channels or ()) > places.MAX_PLACES:
            self._fault(item.lines["channels"], f"`channels` names more than {places.MAX_PLACES} places.")
        for key, seconds in (("remind_before", row.reminder_seconds), ("escalate_before", row.escalation_seconds)):
            if timeout is not None and seconds and seconds >= timeout:
                self._fault(item.lines[key], f"`{key}` must be shorter than the time for the decision.")

    def _read_condition(self, node: Node | None) -> str | None:
        text = self._reading.text(node, "when") if node is not None else None
        if node is None or text is None:
            return None
        try:
            Condition.of(text)
        except InvalidInput as error:
            self._fault(node.line, f"`when`: {error.message[0].lower()}{error.message[1:]}")
        return text

    def _read_approvers(self, node: Node | None, key: str) -> tuple[policy_model.Approvers | None, tuple[str, ...]]:
        if node is None:
            return None, ()
        if not isinstance(node, MappingNode):
            self._fault(node.line, f"`{key}` must be a mapping with owner, roles or members.")
            return policy_model.Approvers(), ()
        values: dict[str, Any] = Record(key, f"`{key}`", APPROVERS).read(node, key, self._reading) or {}
        roles = tuple(dict.fromkeys(Role(role) for role in values.get("roles") or () if role is not None))
        members = tuple(name for name in values.get("members") or () if name is not None)
        owner = bool(values.get("owner"))
        if not (owner or roles or members):
            self._fault(node.line, f"`{key}` names nobody.")
        return policy_model.Approvers(owner=owner, roles=roles), members

    def _read_steps(
        self, node: Node | None
    ) -> tuple[tuple[policy_model.Approvers, ...] | None, tuple[tuple[str, ...], ...]]:
        if node is None:
            return None, ()
        if not isinstance(node, ListNode) or not 1 <= len(node.items) <= MAX_STEPS:
            self._fault(
                node.line,
                f"`escalate_to` must be a list of 1 to {MAX_STEPS} steps, each like approvers: [{{roles: [admin]}}].",
            )
            return None, ()
        steps = [self._read_approvers(step, "escalate_to") for step in node.items]
        return tuple(step for step, _ in steps if step is not None), tuple(members for _, members in steps)

    def _read_quorum(self, node: Node | None) -> policy_model.Quorum | None:
        if node is None:
            return None
        if not isinstance(node, MappingNode):
            number = _VOTES.read(node, "quorum", self._reading)
            return None if number is None else policy_model.Quorum(votes=int(number))
        if not node.items:
            self._fault(node.line, "`quorum` must be a number of votes, or say votes, roles or both.")
        values: dict[str, Any] = QUORUM.read(node, "quorum", self._reading) or {}
        votes, by_role = values.get("votes"), values.get("roles")
        roles: dict[Role, int] = {}
        if isinstance(by_role, MappingNode):
            for name, line in by_role.lines.items():
                role = _ROLE.read(ScalarNode(line, name, plain=True), "roles", self._reading)
                role_votes = _VOTES.read(by_role.items[name], name, self._reading)
                if role is not None and role_votes is not None:
                    roles[Role(role)] = int(role_votes)
                if votes is not None and role_votes is not None and role_votes > votes:
                    self._fault(line, f"`quorum` asks for {role_votes} votes of {name} and {votes} in all.")
        elif by_role is not None:
            self._fault(by_role.line, "`roles` of a quorum must be a mapping from a role to votes: {admin: 1}.")
        return versions.quorum_of(votes, roles)


def _choice(kind: type[Word], word: str | None) -> Word | None:
    return None if word is None else kind(word)


Found = tuple[int, str]
"""The place of a row in its file, and what is wrong with it."""


def faults_of(rows: Sequence[versions.PlacedRow], people: Sequence[Person]) -> Iterator[Found]:
    faults_by_terms: dict[policy_model.Terms, list[str]] = {}
    by_id = {person.id: person for person in people}
    for place, row in enumerate(row.row for row in rows):
        if row.effect is not policy_model.PolicyVerdict.REQUIRES_APPROVAL:
            continue
        terms = _asked(row)
        if terms not in faults_by_terms:
            faults_by_terms[terms] = list(_faults(terms, people, by_id))
        for fault in faults_by_terms[terms]:
            yield place, fault


def _asked(row: policy_model.PolicyRow) -> policy_model.Terms:
    """What the row asks for, without what its approvers do not depend on: many rows ask for the same."""
    terms, _ = resolve_terms(row, None)
    return policy_model.Terms(
        template=terms.template, required_clearance=terms.required_clearance, timeout_seconds=0, reminder_seconds=None,
        approvers=terms.approvers, on_deny=terms.on_deny, self_approval=terms.self_approval, quorum=terms.quorum,
        escalations=row.escalate_to or (),
    )  # fmt: skip


def _faults(terms: policy_model.Terms, people: Sequence[Person], by_id: dict[UUID, Person]) -> Iterator[str]:
    clearance, approvers = terms.required_clearance, terms.approvers
    for id in dict.fromkeys(id for each in (approvers, *terms.escalations) for id in each.members):
        person = by_id.get(id)
        if person is not None and person.clearance < clearance:
            yield f"{person.name} has clearance {person.clearance}, and this policy asks for {clearance}."
    if approvers.owner and not (approvers.roles or approvers.members) and not terms.self_approval:
        yield "its only approver is the owner, who may not decide without self_approval: nobody ever could."
        return
    if not any(_could(person, approvers, clearance) for person in people):
        who = _named(approvers)
        yield f"nobody could ever decide: there is no active member who is {who} with clearance {clearance}."
        return
    yield from _quorum_faults(terms, people)


def _quorum_faults(terms: policy_model.Terms, people: Sequence[Person]) -> Iterator[str]:
    quorum, who = terms.quorum, f"{_named(terms.approvers)} with clearance {terms.required_clearance}"
    if quorum.votes > 1:
        most = max(_voters(terms, people))
        if most < quorum.votes:
            yield f"its quorum of {quorum.votes} votes could never be met: only {most} could be {who}."
    for role_votes in quorum.roles:
        most = max(_voters(terms, [person for person in people if role_votes.role in person.roles]))
        if most < role_votes.votes:
            votes = f"{role_votes.votes} vote{'s' if role_votes.votes > 1 else ''} of {role_votes.role}"
            yield f"its quorum with {votes} could never be met: only {most} of that role could be {who}."


def _voters(terms: policy_model.Terms, people: Sequence[Person]) -> tuple[int, int]:
    """How many of these could decide: in a session that has an owner, whoever that is, and in one that has none."""
    able = [person for person in people if person.clearance >= terms.required_clearance]
    count = sum(_is_named(person, terms.approvers) for person in able)
    if not terms.approvers.owner:
        return count, count
    standing_in = sum(_is_named(person, terms.approvers) or not person.roles.isdisjoint(STANDS_IN) for person in able)
    return min(count + 1, len(able)), standing_in


def _is_named(person: Person, approvers: policy_model.Approvers) -> bool:
    return person.id in approvers.members or not person.roles.isdisjoint(approvers.roles)


def _could(person: Person, approvers: policy_model.Approvers, clearance: int) -> bool:
    return person.clearance >= clearance and (approvers.owner or _is_named(person, approvers))


def _named(approvers: policy_model.Approvers) -> str:
    parts: list[str] = [*approvers.roles]
    if approvers.owner:
        parts.append("the owner of a session")
    if approvers.members:
        parts.append("one of the named members")
    return " or ".join(parts) or "anybody"


def warnings_of(
    rows: Sequence[versions.PlacedRow], people: Sequence[Person], platform: Sequence[policy_model.PolicyRow] = ()
) -> Iterator[Found]:
    yield from _shadowed(rows)
    widens = _step_check(rows, people, platform)
    for place, one in enumerate(rows):
        row = one.row
        if not _IN_TOOL_NAMES.fullmatch(row.target):
            yield place, f"no tool can be called `{row.target}`: only * has a meaning in a target."
        if row.final and row.effect is policy_model.PolicyVerdict.ALLOW:
            yield place, "`final` does nothing here: nothing is looser than allow."
        if row.effect is policy_model.PolicyVerdict.REQUIRES_APPROVAL:
            for warning in _of_approvals(one, people, widens):
                yield place, warning


def _of_approvals(
    one: versions.PlacedRow, people: Sequence[Person], widens: Callable[[versions.PlacedRow, policy_model.Terms], bool]
) -> Iterator[str]:
    row = one.row
    terms, _ = resolve_terms(row, None)
    if (alone := _alone(terms, people)) is not None:
        yield f"{alone} alone may decide this, and not what they asked for themselves."
    if terms.quorum.votes > 1 and _voters(terms, people)[0] < terms.quorum.votes:
        yield f"its quorum of {terms.quorum.votes} votes can only be met where a session has no owner."
    for channel in dict.fromkeys(map(places.channel_of, row.channels or ())):
        if channel not in KNOWN_CHANNELS:
            yield f"there is no channel `{channel}` so far; known are {', '.join(KNOWN_CHANNELS)}."
    if row.escalate_to is not None and not (row.escalation_seconds or terms.escalation_seconds):
        yield "`escalate_to` does nothing here without `escalate_before`."
    elif row.escalation_seconds and not widens(one, terms):
        yield "`escalate_before` does nothing here: no later step asks anybody who is not asked at first."


def _step_check(
    rows: Sequence[versions.PlacedRow], people: Sequence[Person], platform: Sequence[policy_model.PolicyRow]
) -> Callable[[versions.PlacedRow, policy_model.Terms], bool]:
    """Tells whether the steps of a row ask somebody new. Whether two rows match the same call is not checked."""
    asking = policy_model.PolicyVerdict.REQUIRES_APPROVAL
    by_team = {(row.team_id, own_term(row.row, "approvers")) for row in rows if row.row.effect is asking}
    always = {ADMINS, *(own_term(row, "approvers") for row in platform if row.effect is asking)}

    @functools.cache
    def above(team_id: UUID | None) -> frozenset[policy_model.Approvers]:
        others = {approvers for team, approvers in by_team if team_id is not None and team != team_id}
        return frozenset(filter(None, always | others))

    @functools.cache
    def adds(approvers: policy_model.Approvers, clearance: int, steps: Collection[policy_model.Approvers]) -> bool:
        able = [person for person in people if person.clearance >= clearance and not _is_named(person, approvers)]
        return any(_is_named(person, step) for step in steps for person in able)

    def widens(one: versions.PlacedRow, terms: policy_model.Terms) -> bool:
        steps = one.row.escalate_to if one.row.escalate_to is not None else above(one.team_id)
        return adds(terms.approvers, terms.required_clearance, steps)

    return widens


def _alone(terms: policy_model.Terms, people: Sequence[Person]) -> str | None:
    if terms.self_approval or terms.approvers.owner:
        return None
    able = (person for person in people if _could(person, terms.approvers, terms.required_clearance))
    first, second = next(able, None), next(able, None)
    return first.name if first is not None and second is None else None


def _shadowed(placed_rows: Sequence[versions.PlacedRow]) -> Iterator[Found]:
    """Rows that never match, because an earlier one of their level always does."""
    levels: dict[UUID | None, list[tuple[int, policy_model.PolicyRow]]] = {}
    for place, placed_row in enumerate(placed_rows):
        levels.setdefault(placed_row.team_id, []).append((place, placed_row.row))
    for rows in levels.values():
        always = [(place, row) for place, row in rows if row.condition is None]
        index = LevelIndex([row for _, row in always])
        for place, row in rows:
            # A target that matches the target of another row as a text matches whatever that one does.
            before = next(iter(index.find(row.action_type, row.target)), None)
            if before is not None and always[before.position][0] < place:
                yield place, f"`{row.name}` never matches: `{before.row.name}` before it always does."
