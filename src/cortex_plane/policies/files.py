"""Reads a policy file: YAML or JSON into policies, with errors by line."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, replace
from uuid import UUID

from cortex_plane.kernel.conditions import Condition
from cortex_plane.kernel.documents import (
    Bounds,
    Faults,
    Mapping,
    Node,
    Scalar,
    Sequence,
    Values,
    read_document,
)
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import split_ref
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
BOUNDS = Bounds(MAX_FILE_BYTES, nodes=10 * MAX_ROWS)
TOP = ("policies", "teams")
OF_APPROVALS = (
    "template", "clearance", "approvers", "timeout", "remind_before", "on_deny", "self_approval", "quorum",
    "escalate_before", "escalate_to", "channels", "standing",
)  # fmt: skip
ROW = ("name", "action", "target", "when", "effect", "final", *OF_APPROVALS)
INSTEAD = {
    "votes": "`quorum`",
    "escalation": "`escalate_before` and `escalate_to`",
    "escalate": "`escalate_before` and `escalate_to`",
    "delegates": "`approvers`: each of them may delegate",
}
ACTIONS = (TOOL_CALL,)
APPROVERS = ("owner", "roles", "members")
QUORUM = ("votes", "roles")
MAX_STEPS = 10

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_TARGET = re.compile(r"[^\x00-\x20\x7f]+")
_CHANNEL = re.compile(r"[a-z][a-z0-9_-]{0,49}")


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
    root = read_document(text, faults, BOUNDS)
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
        look_up = functools.partial(_members, line=one.line, by_id=by_id, by_name=by_name, faults=faults)
        if one.members:
            row = replace(row, approvers=replace(row.approvers or Approvers(), members=look_up(one.members)))
        if any(one.steps) and row.escalate_to is not None:
            steps = zip(row.escalate_to, one.steps, strict=True)
            row = replace(row, escalate_to=tuple(replace(s, members=look_up(names)) for s, names in steps))
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


def _members(
    names: Iterable[str],
    line: int,
    by_id: dict[UUID, Person],
    by_name: dict[str, list[Person]],
    faults: Faults,
) -> tuple[UUID, ...]:
    ids = (_member(name, line, by_id, by_name, faults) for name in names)
    return tuple(dict.fromkeys(id for id in ids if id is not None))


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


class _Reader(Values):
    def __init__(self, faults: Faults) -> None:
        super().__init__(faults, MAX_TIMEOUT_SECONDS, INSTEAD)
        self._rows: list[DraftRow] = []
        self._conditions: dict[str, str | None] = {}

    def file(self, root: Node | None) -> Draft:
        teams: dict[str, int] = {}
        if not isinstance(root, Mapping) or not root.items:
            line = root.line if root is not None else 1
            self._faults.add(line, "a policy file has the key `policies` (a list), `teams`, or both.")
            return Draft([], teams)
        self.known_keys(root, TOP, "the file")
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
        self.known_keys(item, ROW, "a policy")
        effect = self.choice(item, "effect", PolicyVerdict)
        members: tuple[str, ...] = ()
        approvers = None
        if "approvers" in item.items:
            approvers, members = self._approvers(item.items["approvers"], "approvers")
        escalate_to, steps = self._escalate_to(item)
        for key in ("name", "target", "effect"):
            if key not in item.items:
                self._faults.add(item.line, f"this policy has no `{key}`.")
        row = PolicyRow(
            name=self.pattern(item, "name", _NAME, MAX_NAME, "letters, digits, dots, dashes and underscores"),
            action_type=self._action(item),
            target=self.pattern(
                item, "target", _TARGET, MAX_TARGET, "the name of a tool, with * for anything"
            ),
            effect=effect or PolicyVerdict.DENY,
            condition=self._condition(item),
            required_clearance=self.number(item, "clearance", 1000),
            template=self.choice(item, "template", Template),
            timeout_seconds=self.duration(item, "timeout", 1),
            reminder_seconds=self._before(item, "remind_before"),
            approvers=approvers,
            on_deny=self.choice(item, "on_deny", OnDeny),
            self_approval=self.boolean(item, "self_approval"),
            final=bool(self.boolean(item, "final")),
            channels=self._channels(item),
            quorum=self._quorum(item),
            escalation_seconds=self._before(item, "escalate_before"),
            escalate_to=escalate_to,
            standing=self.boolean(item, "standing"),
        )
        self._fits(item, row, effect)
        self._rows.append(DraftRow(item.line, team, row, members, steps))

    def _fits(self, item: Mapping, row: PolicyRow, effect: PolicyVerdict | None) -> None:
        if effect in (PolicyVerdict.ALLOW, PolicyVerdict.DENY):
            for key in OF_APPROVALS:
                if key in item.items:
                    self._faults.add(
                        item.lines[key],
                        f"`{key}` is for policies whose effect is requires_approval, not {effect}.",
                    )
        timeout = own_timeout(row)
        for key, seconds in (
            ("remind_before", row.reminder_seconds),
            ("escalate_before", row.escalation_seconds),
        ):
            if timeout is not None and seconds and seconds >= timeout:
                self._faults.add(item.lines[key], f"`{key}` must be shorter than the time for the decision.")

    # Values, each as its key wants it ------------------------------------------------------------------------

    def _action(self, item: Mapping) -> str:
        node = item.items.get("action")
        if node is None:
            return TOOL_CALL
        if not isinstance(node, Scalar) or node.text not in ACTIONS:
            self._faults.add(node.line, f"`action` must be one of {', '.join(ACTIONS)}.")
        return TOOL_CALL

    def _before(self, item: Mapping, key: str) -> int | None:
        """So long before the deadline; 0 for never."""
        node = item.items.get(key)
        if isinstance(node, Scalar) and node.text in ("never", "0"):
            return 0
        return self.duration(item, key, 1)

    def _condition(self, item: Mapping) -> str | None:
        node = item.items.get("when")
        text = self.text(node, "when") if node is not None else None
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

    def _approvers(self, node: Node, key: str) -> tuple[Approvers, tuple[str, ...]]:
        if not isinstance(node, Mapping):
            self._faults.add(node.line, f"`{key}` must be a mapping with owner, roles or members.")
            return Approvers(), ()
        self.known_keys(node, APPROVERS, f"`{key}`")
        roles = self.listed(node, "roles", self._role)
        members = self.listed(node, "members", lambda one: self.text(one, "members"))
        owner = bool(self.boolean(node, "owner"))
        if not (owner or roles or members):
            self._faults.add(node.line, f"`{key}` names nobody.")
        return Approvers(owner=owner, roles=tuple(dict.fromkeys(roles))), tuple(members)

    def _escalate_to(self, item: Mapping) -> tuple[tuple[Approvers, ...] | None, tuple[tuple[str, ...], ...]]:
        node = item.items.get("escalate_to")
        if node is None:
            return None, ()
        if not isinstance(node, Sequence) or not 1 <= len(node.items) <= MAX_STEPS:
            self._faults.add(
                node.line,
                f"`escalate_to` must be a list of 1 to {MAX_STEPS} steps, each like approvers: [{{roles: [admin]}}].",
            )
            return None, ()
        read = [self._approvers(step, "escalate_to") for step in node.items]
        return tuple(step for step, _ in read), tuple(members for _, members in read)

    def _quorum(self, item: Mapping) -> Quorum | None:
        node = item.items.get("quorum")
        if not isinstance(node, Mapping):
            votes = self.number(item, "quorum", MAX_VOTES, 1)
            return None if votes is None else Quorum(votes=votes)
        self.known_keys(node, QUORUM, "`quorum`")
        votes = self.number(node, "votes", MAX_VOTES, 1)
        roles: dict[Role, int] = {}
        given = node.items.get("roles")
        if isinstance(given, Mapping):
            for name, line in given.lines.items():
                role = self._role(Scalar(line, name, plain=True))
                needed = self.number(given, name, MAX_VOTES, 1)
                if role is not None and needed is not None:
                    roles[role] = needed
                if votes is not None and needed is not None and needed > votes:
                    self._faults.add(line, f"`quorum` asks for {needed} votes of {name} and {votes} in all.")
        elif given is not None:
            self._faults.add(
                given.line, "`roles` of a quorum must be a mapping from a role to votes: {admin: 1}."
            )
        if not node.items:
            self._faults.add(node.line, "`quorum` must be a number of votes, or say votes, roles or both.")
        return quorum_of(votes, roles)

    def _channels(self, item: Mapping) -> tuple[str, ...] | None:
        if "channels" not in item.items:
            return None
        return tuple(dict.fromkeys(self.listed(item, "channels", self._channel)))

    def _channel(self, node: Node) -> str | None:
        if isinstance(node, Scalar) and _CHANNEL.fullmatch(node.text):
            return node.text
        self._faults.add(node.line, "a channel must be a name in lower case, such as email or webhook.")
        return None

    def _role(self, node: Node) -> Role | None:
        known = tuple(role for role in Role if role is not Role.GUEST)
        if isinstance(node, Scalar) and node.text in known:
            return Role(node.text)
        given = f", not `{node.text[:50]}`" if isinstance(node, Scalar) else ""
        self._faults.add(node.line, f"a role must be one of {', '.join(known)}{given}.")
        return None
