"""Calls of the past judged by two versions of an atlas: what the second would have changed.

Pure, as `policies/rules/simulations.py` is. Of a session only its calls are kept, and not what its gates remembered at each of them:
every call is judged as the first one of a session, and `LEFT_OUT` says what that does not show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.gates.model.atlases import Atlas
from cortex_plane.gates.model.gates import NOTHING_YET, GatedCall, GateInput, GateState
from cortex_plane.gates.rules.evaluation import at_boundary, judge
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.policies import STRICTNESS, PolicyVerdict
from cortex_plane.policies.model.versions import Direction

MAX_GROUPS = 50
MAX_EXAMPLES = 3
LEFT_OUT = (
    "what came before each call in its session: answers, opened capabilities, words that fired gates, limits that were used up",
    "other atlases of the same sessions, and the org's policies",
)


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasJudged:
    """What an atlas says of a call."""

    verdict: PolicyVerdict
    rule: str
    gates: list[str]
    """The gates that ask the agent before it; the verdict is then `deny`, until they are answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasChangeGroup:
    """Calls of the past that another version of their atlas would judge otherwise, in the same way."""

    tool: str
    agent: str
    direction: Direction
    before: AtlasJudged
    after: AtlasJudged
    calls: int
    examples: list[UUID]
    """Ids of calls, the newest first; at most three."""


@dataclass(frozen=True, kw_only=True, slots=True)
class AtlasEffect:
    """What a version would have changed about the calls of a time span, each judged as the first one of its session."""

    since: datetime
    until: datetime
    looked_at: int
    changed: int
    stricter: int
    looser: int
    unknown: int
    """Calls whose tool or arguments are not known."""
    stopped: bool
    """There are more calls in this time: only the newest were looked at."""
    groups: list[AtlasChangeGroup]
    """The largest fifty."""
    left_out: list[str]
    """What this does not look at."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GovernedCall:
    """A call that was made in a session which is bound to the atlas."""

    id: UUID
    tool_name: str
    arguments: Any
    agent: str
    risk: Risk | None


Judgement = tuple[PolicyVerdict, str, tuple[str, ...]]


class AtlasReplay:
    """Takes calls, the newest first, and counts what would become of them."""

    def __init__(self, before: Atlas, after: Atlas, now: datetime) -> None:
        self._now = now
        self._sides = [self._begin(CompiledAtlases([atlas])) for atlas in (before, after)]
        self._counts: Counter[str] = Counter()
        self._calls: Counter[tuple[str, str, Judgement, Judgement]] = Counter()
        self._examples: dict[tuple[str, str, Judgement, Judgement], list[UUID]] = {}

    def _begin(self, atlases: CompiledAtlases) -> tuple[CompiledAtlases, GateState]:
        return atlases, at_boundary(atlases, NOTHING_YET, GateInput(now=self._now)).state

    def look_at(self, calls: Iterable[GovernedCall]) -> None:
        for call in calls:
            self._counts["looked_at"] += 1
            if call.risk is None or not isinstance(call.arguments, dict):
                self._counts["unknown"] += 1
                continue
            before, after = (self._judge(atlases, state, call, call.risk) for atlases, state in self._sides)
            if before == after:
                continue
            self._counts["changed"] += 1
            self._counts[direction(before, after)] += 1
            key = (call.tool_name, call.agent, before, after)
            self._calls[key] += 1
            examples = self._examples.setdefault(key, [])
            if len(examples) < MAX_EXAMPLES:
                examples.append(call.id)

    def _judge(self, atlases: CompiledAtlases, state: GateState, call: GovernedCall, risk: Risk) -> Judgement:
        call_facts = GatedCall(action=call.tool_name, arguments=call.arguments, input_hash="", risk=risk)
        ruling = judge(atlases, state, call_facts, self._now, looking=True)
        gates = tuple(atlases.gates[question.gate].gate_id for question in ruling.asks)
        return ruling.verdict, ruling.rule, gates

    def effect(self, since: datetime, *, stopped: bool) -> AtlasEffect:
        counts = {name: self._counts[name] for name in ("looked_at", "changed", "stricter", "looser", "unknown")}
        groups = [
            AtlasChangeGroup(
                tool=tool, agent=agent, direction=direction(before, after), before=_judged(before), after=_judged(after),
                calls=calls, examples=self._examples[tool, agent, before, after],
            )
            for (tool, agent, before, after), calls in self._calls.most_common(MAX_GROUPS)
        ]  # fmt: skip
        return AtlasEffect(
            since=since, until=self._now, stopped=stopped, groups=groups, left_out=list(LEFT_OUT), **counts
        )


def _judged(judgement: Judgement) -> AtlasJudged:
    verdict, rule, gates = judgement
    return AtlasJudged(verdict=verdict, rule=rule, gates=list(gates))


def direction(before: Judgement, after: Judgement) -> Direction:
    """Which way a change goes: first by what is decided, then by the gates that ask."""
    if change := _strictness(after) - _strictness(before):
        return Direction.STRICTER if change > 0 else Direction.LOOSER
    old, new = set(before[2]), set(after[2])
    if old == new or not (old < new or new < old):
        return Direction.OTHERWISE
    return Direction.STRICTER if old < new else Direction.LOOSER


def _strictness(judgement: Judgement) -> float:
    """What is denied until the agent answers is stricter than what runs at once, and no more."""
    verdict, _, gates = judgement
    return 0.5 if gates else STRICTNESS[verdict]
