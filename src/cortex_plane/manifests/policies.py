"""Policy files: YAML into rows, each with the line that it came from."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.domain.authorization import PolicyVerdict
from cortex_plane.domain.conditions import Condition
from cortex_plane.domain.errors import InvalidInput
from cortex_plane.domain.fields import split_ref
from cortex_plane.domain.members import Role
from cortex_plane.domain.policies import (
    MAX_TIMEOUT_SECONDS,
    TEMPLATES,
    TOOL_CALL,
    Approvers,
    Level,
    OnDeny,
    PolicyRow,
    Template,
)
from cortex_plane.domain.policy_checks import Person
from cortex_plane.domain.policy_files import MAX_FILE_BYTES, MAX_NAME, MAX_ROWS, MAX_TARGET, PlacedRow
from cortex_plane.manifests.documents import Faults, Mapping, Node, Scalar, Sequence, read_document

HINT = "Correct the file and apply it again; nothing was changed. Its format is in docs/policies.md."
TOP = ("policies", "teams")
ROW = (
    "name", "action", "target", "when", "effect", "template", "clearance", "approvers", "timeout", "remind_before",
    "on_deny", "self_approval", "final",
)  # fmt: skip
OF_APPROVALS = ("template", "clearance", "approvers", "timeout", "remind_before", "on_deny", "self_approval")
NOT_YET = {
    "quorum": "one vote decides",
    "votes": "one vote decides",
    "escalation": "a reminder is sent instead, see remind_before",
    "escalate": "a reminder is sent instead, see remind_before",
    "escalate_to": "a reminder is sent instead, see remind_before",
    "channels": "approvals are shown in the inbox and over the API",
    "delegates": "an approval is decided by its approvers",
}
ACTIONS = (TOOL_CALL,)
APPROVERS = ("owner", "roles", "members")

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TARGET = re.compile(r"[^\x00-\x20\x7f]+")
_WHOLE = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0x[0-9a-fA-F]+|0o[0-7]+")
_DURATION = re.compile(r"(?:[0-9]{1,7}[smhd])+")
_PART = re.compile(r"([0-9]+)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = {"true", "false", "null", "~", ""}

Choice = TypeVar("Choice", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A row before the names in it were looked up."""

    line: int
    team: str | None
    row: PolicyRow
    members: tuple[str, ...]
    """Names or ids; the row's own approvers hold none yet."""


@dataclass(frozen=True, slots=True)
class Draft:
    rows: list[DraftRow]
    team_lines: dict[str, int]


def policy_faults() -> Faults:
    return Faults(code="invalid_policy_file", hint=HINT)


def read(text: str) -> Draft:
    """Raises ``InvalidInput`` that names every line at fault."""
    faults = policy_faults()
    root = read_document(text, faults, MAX_FILE_BYTES)
    reader = _Reader(faults)
    draft = reader.file(root)
    faults.raise_any()
    return draft


def place(
    draft: Draft, teams: MappingOf[str, UUID], people: Iterable[Person]
) -> tuple[list[PlacedRow], list[int]]:
    """The rows with teams and members looked up, and the line of each."""
    faults = policy_faults()
    for slug, line in draft.team_lines.items():
        if slug not in teams:
            known = ", ".join(sorted(teams)[:20]) or "none"
            faults.add(line, f"there is no team `{slug}`; there are {known}.")
    by_id, by_name = _directory(people)
    placed = []
    for position, one in enumerate(draft.rows):
        row = one.row
        if one.members:
            ids = tuple(_member(name, one.line, by_id, by_name, faults) for name in one.members)
            found = tuple(dict.fromkeys(id for id in ids if id is not None))
            row = _with_members(row, found)
        team_id = teams.get(one.team) if one.team is not None else None
        level = Level.ORG if one.team is None else Level.TEAM
        placed.append(PlacedRow(level=level, team_id=team_id, team=one.team, position=position, row=row))
    faults.raise_any()
    return placed, [one.line for one in draft.rows]


def _directory(people: Iterable[Person]) -> tuple[dict[UUID, Person], dict[str, list[Person]]]:
    by_id: dict[UUID, Person] = {}
    by_name: dict[str, list[Person]] = {}
    for person in people:
        by_id[person.id] = person
        by_name.setdefault(person.name, []).append(person)
    return by_id, by_name


def _member(
    name: str, line: int, by_id: dict[UUID, Person], by_name: dict[str, list[Person]], faults: Faults
) -> UUID | None:
    id, _ = split_ref(name)
    if id is not None:
        if id in by_id:
            return id
        faults.add(line, f"there is no active member with the id {id}.")
        return None
    found = by_name.get(name, [])
    if len(found) == 1:
        return found[0].id
    if found:
        faults.add(line, f"{len(found)} members are called `{name}`: use an id, for example {found[0].id}.")
    else:
        faults.add(line, f"there is no active member called `{name}`.")
    return None


def _with_members(row: PolicyRow, ids: tuple[UUID, ...]) -> PolicyRow:
    named = row.approvers or Approvers()
    return replace(row, approvers=replace(named, members=ids))


class _Reader:
    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._rows: list[DraftRow] = []
        self._conditions: dict[str, str | None] = {}

    def file(self, root: Node | None) -> Draft:
        teams: dict[str, int] = {}
        if not isinstance(root, Mapping) or not root.items:
            line = root.line if root is not None else 1
            self._faults.add(line, "a policy file has the key `policies` (a list), `teams`, or both.")
            return Draft([], teams)
        self._known_keys(root, TOP, "the file")
        if "policies" in root.items:
            self._level(root.items["policies"], None)
        if "teams" in root.items:
            given = root.items["teams"]
            if isinstance(given, Mapping):
                for slug, rows in given.items.items():
                    teams[slug] = given.lines[slug]
                    self._level(rows, slug)
            else:
                self._faults.add(
                    given.line, "`teams` must be a mapping from a team's slug to its list of policies."
                )
        return Draft(self._rows, teams)

    def _level(self, node: Node, team: str | None) -> None:
        where = f"the policies of {team}" if team else "`policies`"
        if not isinstance(node, Sequence):
            self._faults.add(node.line, f"{where} must be a list; an empty one is [].")
            return
        names: dict[str, int] = {}
        for item in node.items:
            if len(self._rows) >= MAX_ROWS:
                self._faults.add(item.line, f"the file has more than {MAX_ROWS} policies.")
                return
            if not isinstance(item, Mapping):
                self._faults.add(item.line, "a policy must be a mapping with a name, a target and an effect.")
                continue
            self._row(item, team)
            name = item.items.get("name")
            if isinstance(name, Scalar):
                first = names.setdefault(name.text, item.line)
                if first != item.line:
                    self._faults.add(name.line, f"the name `{name.text[:100]}` is taken by line {first}.")

    def _row(self, item: Mapping, team: str | None) -> None:
        self._known_keys(item, ROW, "a policy")
        effect = self._choice(item, "effect", PolicyVerdict)
        members: tuple[str, ...] = ()
        approvers = None
        if "approvers" in item.items:
            approvers, members = self._approvers(item.items["approvers"])
        for key in ("name", "target", "effect"):
            if key not in item.items:
                self._faults.add(item.line, f"this policy has no `{key}`.")
        row = PolicyRow(
            name=self._pattern(
                item, "name", _NAME, MAX_NAME, "letters, digits, dots, dashes and underscores"
            ),
            action_type=self._action(item),
            target=self._pattern(
                item, "target", _TARGET, MAX_TARGET, "the name of a tool, with * for anything"
            ),
            effect=effect or PolicyVerdict.DENY,
            condition=self._condition(item),
            required_clearance=self._number(item, "clearance", 1000),
            template=self._choice(item, "template", Template),
            timeout_seconds=self._duration(item, "timeout", 1),
            reminder_seconds=self._reminder(item),
            approvers=approvers,
            on_deny=self._choice(item, "on_deny", OnDeny),
            self_approval=self._boolean(item, "self_approval"),
            final=bool(self._boolean(item, "final")),
        )
        self._fits(item, row, effect)
        self._rows.append(DraftRow(item.line, team, row, members))

    def _fits(self, item: Mapping, row: PolicyRow, effect: PolicyVerdict | None) -> None:
        if effect in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
            for key in OF_APPROVALS:
                if key in item.items:
                    self._faults.add(
                        item.lines[key],
                        f"`{key}` is for policies whose effect is requires_approval, not {effect}.",
                    )
        timeout = row.timeout_seconds
        if timeout is None and row.template is not None:
            timeout = TEMPLATES[row.template].timeout_seconds
        if timeout is not None and row.reminder_seconds and row.reminder_seconds >= timeout:
            self._faults.add(
                item.lines["remind_before"], "`remind_before` must be shorter than the time for the decision."
            )

    def _known_keys(self, node: Mapping, known: tuple[str, ...], what: str) -> None:
        for key, line in node.lines.items():
            if key in known:
                continue
            if key in NOT_YET:
                self._faults.add(line, f"`{key}` is not built yet: {NOT_YET[key]}. Leave it out.")
            else:
                self._faults.add(line, f"`{key[:100]}` is not a key of {what}; known are {', '.join(known)}.")

    # Values, each as its key wants it ------------------------------------------------------------------------

    def _text(self, node: Node, key: str) -> str | None:
        if not isinstance(node, Scalar):
            self._faults.add(node.line, f"`{key}` must be a text.")
            return None
        if node.plain and (node.text.lower() in _WORDS or _NUMBER.fullmatch(node.text)):
            said = f"`{node.text}`" if node.text else "nothing"
            self._faults.add(node.line, f"`{key}` must be a text, and this is {said}: put it into quotes.")
            return None
        return node.text

    def _pattern(self, item: Mapping, key: str, pattern: re.Pattern[str], longest: int, allowed: str) -> str:
        node = item.items.get(key)
        text = self._text(node, key) if node is not None else None
        if node is None or text is None:
            return ""
        if len(text) > longest or not pattern.fullmatch(text):
            self._faults.add(node.line, f"`{key}` must be {allowed}; at most {longest} characters.")
        return text

    def _choice(self, item: Mapping, key: str, kind: type[Choice]) -> Choice | None:
        node = item.items.get(key)
        if node is None:
            return None
        text = node.text if isinstance(node, Scalar) else None
        if text in tuple(kind):
            return kind(text)
        given = f", not `{text[:50]}`" if text else ""
        self._faults.add(node.line, f"`{key}` must be one of {', '.join(kind)}{given}.")
        return None

    def _action(self, item: Mapping) -> str:
        node = item.items.get("action")
        if node is None:
            return TOOL_CALL
        if not isinstance(node, Scalar) or node.text not in ACTIONS:
            self._faults.add(node.line, f"`action` must be one of {', '.join(ACTIONS)}.")
        return TOOL_CALL

    def _boolean(self, item: Mapping, key: str) -> bool | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        self._faults.add(node.line, f"`{key}` must be true or false.")
        return None

    def _number(self, item: Mapping, key: str, largest: int) -> int | None:
        node = item.items.get(key)
        if node is None:
            return None
        if (
            isinstance(node, Scalar)
            and node.plain
            and _WHOLE.fullmatch(node.text)
            and int(node.text) <= largest
        ):
            return int(node.text)
        self._faults.add(node.line, f"`{key}` must be a whole number from 0 to {largest}.")
        return None

    def _duration(self, item: Mapping, key: str, shortest: int) -> int | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and _DURATION.fullmatch(node.text):
            seconds = sum(int(amount) * _UNITS[unit] for amount, unit in _PART.findall(node.text))
            if shortest <= seconds <= MAX_TIMEOUT_SECONDS:
                return seconds
        self._faults.add(node.line, f"`{key}` must be a time up to 7d, such as 90s, 30m, 2h or 1d12h.")
        return None

    def _reminder(self, item: Mapping) -> int | None:
        node = item.items.get("remind_before")
        if isinstance(node, Scalar) and node.text == "never":
            return 0
        return self._duration(item, "remind_before", 1)

    def _condition(self, item: Mapping) -> str | None:
        node = item.items.get("when")
        text = self._text(node, "when") if node is not None else None
        if node is None or text is None:
            return None
        if text not in self._conditions:
            try:
                Condition.of(text)
                self._conditions[text] = None
            except InvalidInput as error:
                self._conditions[text] = error.message
        fault = self._conditions[text]
        if fault is not None:
            self._faults.add(node.line, f"`when`: {fault[0].lower()}{fault[1:]}")
        return text

    def _approvers(self, node: Node) -> tuple[Approvers | None, tuple[str, ...]]:
        if not isinstance(node, Mapping):
            self._faults.add(node.line, "`approvers` must be a mapping with owner, roles or members.")
            return None, ()
        self._known_keys(node, APPROVERS, "`approvers`")
        roles = self._list(node, "roles", self._role)
        members = self._list(node, "members", lambda one: self._text(one, "members"))
        owner = bool(self._boolean(node, "owner"))
        if not (owner or roles or members):
            self._faults.add(node.line, "`approvers` names nobody.")
        return Approvers(owner=owner, roles=tuple(dict.fromkeys(roles))), tuple(members)

    def _list(self, item: Mapping, key: str, read_one: Callable[[Node], Any]) -> list[Any]:
        node = item.items.get(key)
        if node is None:
            return []
        if not isinstance(node, Sequence):
            self._faults.add(node.line, f"`{key}` must be a list: [one, another].")
            return []
        if len(node.items) > 100:
            self._faults.add(node.line, f"`{key}` has {len(node.items)} entries; the limit is 100.")
            return []
        return [found for one in node.items if (found := read_one(one)) is not None]

    def _role(self, node: Node) -> Role | None:
        known = tuple(role for role in Role if role is not Role.GUEST)
        if isinstance(node, Scalar) and node.text in known:
            return Role(node.text)
        given = f", not `{node.text[:50]}`" if isinstance(node, Scalar) else ""
        self._faults.add(node.line, f"a role must be one of {', '.join(known)}{given}.")
        return None
