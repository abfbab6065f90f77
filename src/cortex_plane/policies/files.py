"""Reads a policy file: YAML or JSON into policies, with errors by line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.kernel.conditions import Condition
from cortex_plane.kernel.documents import Bounds, Faults, ListNode, MappingNode, Node, ScalarNode, read_document
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.shapes import Amount, Duration, Field, Flag, ListOf, OneOf, Reading, Record, Text, UnreadNode
from cortex_plane.policies.model.policies import (
    MAX_TIMEOUT_SECONDS,
    TOOL_CALL,
    Approvers,
    Level,
    OnDeny,
    PolicyRow,
    PolicyVerdict,
    Quorum,
    Template,
)
from cortex_plane.policies.model.versions import (
    MAX_FILE_BYTES,
    MAX_NAME,
    MAX_ROWS,
    MAX_TARGET,
    MAX_VOTES,
    PlacedRow,
    quorum_of,
)
from cortex_plane.policies.rules.checks import Person
from cortex_plane.policies.rules.terms import own_timeout
from cortex_plane.tenancy.model.orgs import Role

HINT = "Correct the file and apply it again; nothing was changed. Its format is in docs/guides/policies.md."
BOUNDS = Bounds(MAX_FILE_BYTES)
INSTEAD = {
    "votes": "`quorum`",
    "escalation": "`escalate_before` and `escalate_to`",
    "escalate": "`escalate_before` and `escalate_to`",
    "delegates": "`approvers`: each of them may delegate",
}
ACTIONS = (TOOL_CALL,)
MAX_LIST = 100
MAX_MEMBER_NAME = 1000
MAX_STEPS = 10

_FLAG, _NODE = Field(Flag()), Field(UnreadNode())
_BEFORE = Field(Duration(MAX_TIMEOUT_SECONDS, zero=("never", "0")))
_VOTES = Amount(1, MAX_VOTES, whole=True, digits=True)
_ROLE = OneOf(tuple(role for role in Role if role is not Role.GUEST), name="a role")
_CHANNEL = Text(50, r"[a-z][a-z0-9_-]*", "a name in lower case, such as email or webhook", name="a channel")
OF_APPROVALS = {
    "template": Field(OneOf(tuple(Template))),
    "clearance": Field(Amount(0, 1000, whole=True, digits=True)),
    "approvers": _NODE,
    "timeout": Field(Duration(MAX_TIMEOUT_SECONDS)),
    "remind_before": _BEFORE,
    "on_deny": Field(OneOf(tuple(OnDeny))),
    "self_approval": _FLAG,
    "quorum": _NODE,
    "escalate_before": _BEFORE,
    "escalate_to": _NODE,
    "channels": Field(ListOf(_CHANNEL, most=MAX_LIST)),
    "standing": _FLAG,
}
"""Keys of policies whose effect is requires_approval."""
FILE = Record("file", "the file", {"policies": _NODE, "teams": _NODE})
POLICY = Record("policy", "a policy", {
    "name": Field(Text(MAX_NAME, r"[A-Za-z0-9][A-Za-z0-9._-]*", "letters, digits, dots, dashes and underscores")),
    "action": _NODE,
    "target": Field(Text(MAX_TARGET, r"[^\x00-\x20\x7f]+", "the name of a tool, with * for anything")),
    "when": _NODE,
    "effect": Field(OneOf(tuple(PolicyVerdict))),
    "final": _FLAG,
    **OF_APPROVALS,
})  # fmt: skip
APPROVERS = {
    "owner": _FLAG,
    "roles": Field(ListOf(_ROLE, most=MAX_LIST)),
    "members": Field(ListOf(Text(MAX_MEMBER_NAME), most=MAX_LIST)),
}
QUORUM = Record("quorum", "`quorum`", {"votes": Field(_VOTES), "roles": _NODE})

Word = TypeVar("Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class DraftRow:
    """A row before the names in it were looked up."""

    line: int
    team: str | None
    row: PolicyRow
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


def place(draft: Draft, teams: Mapping[str, UUID], people: Iterable[Person]) -> tuple[list[PlacedRow], list[int]]:
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
            row = replace(row, approvers=replace(row.approvers or Approvers(), members=members))
        if any(entry.steps) and row.escalate_to is not None:
            steps = zip(row.escalate_to, entry.steps, strict=True)
            row = replace(
                row,
                escalate_to=tuple(
                    replace(step, members=directory.find_all(names, entry.line)) for step, names in steps
                ),
            )
        team_id = teams.get(entry.team) if entry.team is not None else None
        level = Level.ORG if entry.team is None else Level.TEAM
        rows.append(PlacedRow(level=level, team_id=team_id, team=entry.team, position=position, row=row))
    faults.raise_any()
    return rows, [entry.line for entry in draft.rows]


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
        self._conditions: dict[str, str | None] = {}

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
            if len(self._rows) >= MAX_ROWS:
                self._fault(item.line, f"the file has more than {MAX_ROWS} policies.")
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
        row = PolicyRow(
            name=values.get("name") or "",
            action_type=TOOL_CALL,
            target=values.get("target") or "",
            effect=PolicyVerdict(values.get("effect") or PolicyVerdict.DENY),
            condition=self._read_condition(values.get("when")),
            required_clearance=values.get("clearance"),
            template=_choice(Template, values.get("template")),
            timeout_seconds=values.get("timeout"),
            reminder_seconds=values.get("remind_before"),
            approvers=approvers,
            on_deny=_choice(OnDeny, values.get("on_deny")),
            self_approval=values.get("self_approval"),
            final=bool(values.get("final")),
            channels=None if channels is None else tuple(dict.fromkeys(filter(None, channels))),
            quorum=self._read_quorum(values.get("quorum")),
            escalation_seconds=values.get("escalate_before"),
            escalate_to=escalate_to,
            standing=values.get("standing"),
        )
        self._check_row(item, row, values.get("effect"))
        self._rows.append(DraftRow(item.line, team, row, members, steps))

    def _check_row(self, item: MappingNode, row: PolicyRow, effect: str | None) -> None:
        if effect in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
            for key in OF_APPROVALS:
                if key in item.items:
                    self._fault(
                        item.lines[key], f"`{key}` is for policies whose effect is requires_approval, not {effect}."
                    )
        timeout = own_timeout(row)
        for key, seconds in (("remind_before", row.reminder_seconds), ("escalate_before", row.escalation_seconds)):
            if timeout is not None and seconds and seconds >= timeout:
                self._fault(item.lines[key], f"`{key}` must be shorter than the time for the decision.")

    def _read_condition(self, node: Node | None) -> str | None:
        text = self._reading.text(node, "when") if node is not None else None
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
            self._fault(node.line, f"`when`: {fault[0].lower()}{fault[1:]}")
        return text

    def _read_approvers(self, node: Node | None, key: str) -> tuple[Approvers | None, tuple[str, ...]]:
        if node is None:
            return None, ()
        if not isinstance(node, MappingNode):
            self._fault(node.line, f"`{key}` must be a mapping with owner, roles or members.")
            return Approvers(), ()
        values: dict[str, Any] = Record(key, f"`{key}`", APPROVERS).read(node, key, self._reading) or {}
        roles = tuple(dict.fromkeys(Role(role) for role in values.get("roles") or () if role is not None))
        members = tuple(name for name in values.get("members") or () if name is not None)
        owner = bool(values.get("owner"))
        if not (owner or roles or members):
            self._fault(node.line, f"`{key}` names nobody.")
        return Approvers(owner=owner, roles=roles), members

    def _read_steps(self, node: Node | None) -> tuple[tuple[Approvers, ...] | None, tuple[tuple[str, ...], ...]]:
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

    def _read_quorum(self, node: Node | None) -> Quorum | None:
        if node is None:
            return None
        if not isinstance(node, MappingNode):
            number = _VOTES.read(node, "quorum", self._reading)
            return None if number is None else Quorum(votes=int(number))
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
        return quorum_of(votes, roles)


def _choice(kind: type[Word], word: str | None) -> Word | None:
    return None if word is None else kind(word)
