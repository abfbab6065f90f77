"""Checks of policy files against the levels above them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.agents.model.tools import is_tool_name
from cortex_plane.kernel.globs import STAR
from cortex_plane.policies.model.policies import Approvers, PolicyRow, PolicyVerdict, Terms
from cortex_plane.policies.model.versions import PlacedRow
from cortex_plane.policies.rules.engine import LevelIndex
from cortex_plane.policies.rules.terms import ADMINS, own_approvers, resolve_terms
from cortex_plane.tenancy.model.orgs import Role

MAX_WARNINGS = 50
STANDS_IN = frozenset({Role.ADMIN, Role.APPROVER})
"""Who decides for the owner of a session that has none."""
KNOWN_CHANNELS = ("email", "webhook")


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """An active member, as far as deciding needs."""

    id: UUID
    name: str
    clearance: int
    roles: frozenset[Role]


Found = tuple[int, str]
"""The place of a row in its file, and what is wrong with it."""


def faults_of(rows: Sequence[PlacedRow], people: Sequence[Person]) -> Iterator[Found]:
    faults_by_terms: dict[Terms, list[str]] = {}
    by_id = {person.id: person for person in people}
    for place, row in enumerate(row.row for row in rows):
        if row.effect is not PolicyVerdict.REQUIRES_APPROVAL:
            continue
        terms = _asked(row)
        if terms not in faults_by_terms:
            faults_by_terms[terms] = list(_faults(terms, people, by_id))
        for fault in faults_by_terms[terms]:
            yield place, fault


def _asked(row: PolicyRow) -> Terms:
    """What the row asks for, without what its approvers do not depend on: many rows ask for the same."""
    terms, _ = resolve_terms(row, None)
    return Terms(
        template=terms.template, required_clearance=terms.required_clearance, timeout_seconds=0, reminder_seconds=None,
        approvers=terms.approvers, on_deny=terms.on_deny, self_approval=terms.self_approval, quorum=terms.quorum,
        escalations=row.escalate_to or (),
    )  # fmt: skip


def _faults(terms: Terms, people: Sequence[Person], by_id: dict[UUID, Person]) -> Iterator[str]:
    clearance, approvers = terms.required_clearance, terms.approvers
    members = (id for each in (approvers, *terms.escalations) for id in each.members)
    for id in dict.fromkeys(members):
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


def _quorum_faults(terms: Terms, people: Sequence[Person]) -> Iterator[str]:
    quorum, who = terms.quorum, f"{_named(terms.approvers)} with clearance {terms.required_clearance}"
    if quorum.votes > 1:
        most = max(_voters(terms, people))
        if most < quorum.votes:
            yield f"its quorum of {quorum.votes} votes could never be met: only {most} could be {who}."
    for role_votes in quorum.roles:
        of_role = [person for person in people if role_votes.role in person.roles]
        most = max(_voters(terms, of_role))
        if most < role_votes.votes:
            votes = f"{role_votes.votes} vote{'s' if role_votes.votes > 1 else ''} of {role_votes.role}"
            yield f"its quorum with {votes} could never be met: only {most} of that role could be {who}."


def _voters(terms: Terms, people: Sequence[Person]) -> tuple[int, int]:
    """How many of these could decide: in a session that has an owner, whoever that is, and in one that has none."""
    able = [person for person in people if person.clearance >= terms.required_clearance]
    count = sum(_is_named(person, terms.approvers) for person in able)
    if not terms.approvers.owner:
        return count, count
    standing_in = sum(_is_named(person, terms.approvers) or not person.roles.isdisjoint(STANDS_IN) for person in able)
    return min(count + 1, len(able)), standing_in


def _is_named(person: Person, approvers: Approvers) -> bool:
    return person.id in approvers.members or not person.roles.isdisjoint(approvers.roles)


def _could(person: Person, approvers: Approvers, clearance: int) -> bool:
    return person.clearance >= clearance and (approvers.owner or _is_named(person, approvers))


def _named(approvers: Approvers) -> str:
    parts: list[str] = [*approvers.roles]
    if approvers.owner:
        parts.append("the owner of a session")
    if approvers.members:
        parts.append("one of the named members")
    return " or ".join(parts) or "anybody"


def warnings_of(
    rows: Sequence[PlacedRow], people: Sequence[Person], platform: Sequence[PolicyRow] = ()
) -> Iterator[Found]:
    yield from _shadowed(rows)
    steps = _Steps(rows, people, platform)
    for place, one in enumerate(rows):
        row = one.row
        literal = row.target.replace(STAR, "a")
        if not is_tool_name(literal) and not is_tool_name(f"a{literal}") and not _could_be_part(row.target):
            yield place, f"no tool can be called `{row.target}`: only * has a meaning in a target."
        if row.final and row.effect is PolicyVerdict.ALLOW:
            yield place, "`final` does nothing here: nothing is looser than allow."
        if row.effect is PolicyVerdict.REQUIRES_APPROVAL:
            for warning in _of_approvals(one, people, steps):
                yield place, warning


def _of_approvals(one: PlacedRow, people: Sequence[Person], steps: _Steps) -> Iterator[str]:
    row = one.row
    terms, _ = resolve_terms(row, None)
    alone = _alone(terms, people)
    if alone is not None:
        yield f"{alone} alone may decide this, and not what they asked for themselves."
    if terms.quorum.votes > 1 and _voters(terms, people)[0] < terms.quorum.votes:
        yield f"its quorum of {terms.quorum.votes} votes can only be met where a session has no owner."
    for channel in row.channels or ():
        if channel not in KNOWN_CHANNELS:
            yield f"there is no channel `{channel}` so far; known are {', '.join(KNOWN_CHANNELS)}."
    if row.escalate_to is not None and not terms.escalation_seconds:
        yield "`escalate_to` does nothing here without `escalate_before`."
    elif row.escalation_seconds and not steps.add_somebody(one, terms):
        yield "`escalate_before` does nothing here: no later step asks anybody who is not asked at first."


class _Steps:
    """To whom the rows of a file could escalate: whether two rows match the same call is not asked."""

    def __init__(self, rows: Sequence[PlacedRow], people: Sequence[Person], platform: Sequence[PolicyRow]) -> None:
        self._people = people
        self._known: dict[tuple[Approvers, int, Collection[Approvers]], bool] = {}
        self._levels: dict[UUID | None, frozenset[Approvers]] = {}
        self._rows: dict[UUID | None, set[Approvers]] = {}
        for row in rows:
            approvers = _step(row.row)
            if approvers is not None:
                self._rows.setdefault(row.team_id, set()).add(approvers)
        self._platform = {approvers for row in platform if (approvers := _step(row)) is not None}

    def add_somebody(self, one: PlacedRow, terms: Terms) -> bool:
        approvers, clearance = terms.approvers, terms.required_clearance
        steps = one.row.escalate_to if one.row.escalate_to is not None else self._above(one.team_id)
        key = (approvers, clearance, steps)
        if key not in self._known:
            self._known[key] = any(
                person.clearance >= clearance and _is_named(person, step) and not _is_named(person, approvers)
                for step in steps
                for person in self._people
            )
        return self._known[key]

    def _above(self, team_id: UUID | None) -> frozenset[Approvers]:
        if team_id not in self._levels:
            others = [rows for team, rows in self._rows.items() if team != team_id]
            above = frozenset[Approvers]().union(*others) if team_id is not None else frozenset[Approvers]()
            self._levels[team_id] = above | self._platform | {ADMINS}
        return self._levels[team_id]


def _step(row: PolicyRow) -> Approvers | None:
    return own_approvers(row) if row.effect is PolicyVerdict.REQUIRES_APPROVAL else None


def _could_be_part(target: str) -> bool:
    return all(c.isascii() and (c.islower() or c.isdigit() or c in "_.") for c in target.replace(STAR, ""))


def _alone(terms: Terms, people: Sequence[Person]) -> str | None:
    if terms.self_approval or terms.approvers.owner:
        return None
    able = (person for person in people if _could(person, terms.approvers, terms.required_clearance))
    first, second = next(able, None), next(able, None)
    return first.name if first is not None and second is None else None


def _shadowed(placed_rows: Sequence[PlacedRow]) -> Iterator[Found]:
    """Rows that never match, because an earlier one of their level always does."""
    for rows, places in _levels(placed_rows):
        always = [n for n, row in enumerate(rows) if row.condition is None]
        index = LevelIndex([rows[n] for n in always])
        for n, row in enumerate(rows):
            # A target that matches the target of another row as a text matches whatever that one does.
            before = next(iter(index.find(row.action_type, row.target)), None)
            if before is not None and always[before.position] < n:
                yield places[n], f"`{row.name}` never matches: `{before.row.name}` before it always does."


def _levels(placed_rows: Sequence[PlacedRow]) -> Iterator[tuple[list[PolicyRow], list[int]]]:
    levels: dict[UUID | None, tuple[list[PolicyRow], list[int]]] = {}
    for place, row in enumerate(placed_rows):
        rows, places = levels.setdefault(row.team_id, ([], []))
        rows.append(row.row)
        places.append(place)
    yield from levels.values()
