"""What is wrong with a policy although it reads well: nobody could ever decide, or it could never match."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.domain.authorization import PolicyVerdict
from cortex_plane.domain.globs import STAR
from cortex_plane.domain.members import Role
from cortex_plane.domain.policies import Approvers, PolicyRow
from cortex_plane.domain.policy_files import PlacedRow
from cortex_plane.domain.policy_index import MAX_CROWD, LevelIndex
from cortex_plane.domain.policy_terms import resolve_terms
from cortex_plane.domain.tools import is_tool_name

MAX_WARNINGS = 50
STANDS_IN = frozenset({Role.ADMIN, Role.APPROVER})
"""Who decides for the owner of a session that has none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Person:
    """An active member, as far as deciding needs."""

    id: UUID
    name: str
    clearance: int
    roles: frozenset[Role]


Found = tuple[int, str]
"""The place of a row in its file, and what is wrong with it."""


def faults_of(placed: Sequence[PlacedRow], people: Sequence[Person]) -> Iterator[Found]:
    known: dict[tuple[Approvers, int, bool], list[str]] = {}
    by_id = {person.id: person for person in people}
    for place, row in enumerate(one.row for one in placed):
        if row.effect is not PolicyVerdict.REQUIRES_APPROVAL:
            continue
        terms, _ = resolve_terms(row, None)
        key = (terms.approvers, terms.required_clearance, terms.self_approval)
        if key not in known:
            known[key] = list(_faults(*key, people, by_id))
        for fault in known[key]:
            yield place, fault
    yield from _crowds(placed)


def _faults(
    approvers: Approvers,
    clearance: int,
    self_approval: bool,
    people: Sequence[Person],
    by_id: dict[UUID, Person],
) -> Iterator[str]:
    for id in approvers.members:
        person = by_id.get(id)
        if person is not None and person.clearance < clearance:
            yield f"{person.name} has clearance {person.clearance}, and this policy asks for {clearance}."
    if approvers.owner and not (approvers.roles or approvers.members) and not self_approval:
        yield "its only approver is the owner, who may not decide without self_approval: nobody ever could."
        return
    if not any(_could(person, approvers, clearance) for person in people):
        who = _named(approvers)
        yield f"nobody could ever decide: there is no active member who is {who} with clearance {clearance}."


def _could(person: Person, approvers: Approvers, clearance: int) -> bool:
    return person.clearance >= clearance and (
        approvers.owner or person.id in approvers.members or not person.roles.isdisjoint(approvers.roles)
    )


def _named(approvers: Approvers) -> str:
    parts: list[str] = [*approvers.roles]
    if approvers.owner:
        parts.append("the owner of a session")
    if approvers.members:
        parts.append("one of the named members")
    return " or ".join(parts) or "anybody"


def _crowds(placed: Sequence[PlacedRow]) -> Iterator[Found]:
    """Rows that only their conditions tell apart cost time with each call: there may not be too many of them."""
    for rows, places in _levels(placed):
        for text, count in LevelIndex(rows).crowds():
            said = f"{count} policies of this level are about `{text}`; the limit is {MAX_CROWD}."
            yield places[0], f"{said} Join their conditions, or name the tools more exactly."


def warnings_of(placed: Sequence[PlacedRow], people: Sequence[Person]) -> Iterator[Found]:
    yield from _shadowed(placed)
    for place, row in enumerate(one.row for one in placed):
        literal = row.target.replace(STAR, "a")
        if not is_tool_name(literal) and not is_tool_name(f"a{literal}") and not _could_be_part(row.target):
            yield place, f"no tool can be called `{row.target}`: only * has a meaning in a target."
        if row.final and row.effect is PolicyVerdict.ALLOW:
            yield place, "`final` does nothing here: nothing is looser than allow."
        alone = _alone(row, people)
        if alone is not None:
            yield place, f"{alone} alone may decide this, and not what they asked for themselves."


def _could_be_part(target: str) -> bool:
    return all(c.isascii() and (c.islower() or c.isdigit() or c in "_.") for c in target.replace(STAR, ""))


def _alone(row: PolicyRow, people: Sequence[Person]) -> str | None:
    if row.effect is not PolicyVerdict.REQUIRES_APPROVAL:
        return None
    terms, _ = resolve_terms(row, None)
    if terms.self_approval or terms.approvers.owner:
        return None
    able = (person for person in people if _could(person, terms.approvers, terms.required_clearance))
    first, second = next(able, None), next(able, None)
    return first.name if first is not None and second is None else None


def _shadowed(placed: Sequence[PlacedRow]) -> Iterator[Found]:
    """Rows that never match, because an earlier one of their level always does."""
    for rows, places in _levels(placed):
        always = [n for n, row in enumerate(rows) if row.condition is None]
        index = LevelIndex([rows[n] for n in always])
        for n, row in enumerate(rows):
            for found in index.candidates(row.action_type, row.target):
                if always[found.position] >= n:
                    break
                if found.glob.covers(row.target):
                    yield places[n], f"`{row.name}` never matches: `{found.row.name}` before it always does."
                    break


def _levels(placed: Sequence[PlacedRow]) -> Iterator[tuple[list[PolicyRow], list[int]]]:
    levels: dict[UUID | None, tuple[list[PolicyRow], list[int]]] = {}
    for place, one in enumerate(placed):
        rows, places = levels.setdefault(one.team_id, ([], []))
        rows.append(one.row)
        places.append(place)
    yield from levels.values()
