"""Simulations: the calls of a time span judged once more, by the policies of now and by those of a proposed file.

Pure: whoever has the calls gives them here, and gets what would change.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.kernel.fields import Risk, highest_risk
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.model.versions import ChangeGroup, Direction, Judged, Recorded, SimulationTotals
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.sessions.model.sessions import SessionKind

MAX_GROUPS = 200
MAX_EXAMPLES = 3
LEFT_OUT = (
    "gates and policies of atlases, which judge {governed} of these calls too: the stricter verdict holds, and an atlas may allow a call that"
    " no policy matches"
)
NOT_COMPARED = frozenset({"action", "details"})
"""What a request says to its approvers, whatever the policies are."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PastCall:
    """A call that was made, with what policies look at."""

    id: UUID
    job_id: UUID
    tool_name: str
    arguments: Any
    created_at: datetime
    agent: str
    teams: tuple[UUID, ...]
    session_kind: str
    request_policies: list[policy_model.PolicyRow] | None
    risk: Risk | None
    """None: no such tool was published, or the call did not fit it. No policy was asked then."""
    read_only: bool | None
    recorded_verdict: policy_model.PolicyVerdict | None
    """None: a call that only reads leaves no such record."""
    recorded_rule: str | None
    governed: bool = False
    """Its session is bound to an atlas."""
    known_risk: Risk | None = None
    """Of a call that ran elsewhere: what is known of its tool, whatever its agent declared."""


Key = tuple[str, str, Judged, Judged, tuple[str, ...], Direction]


@dataclass(slots=True)
class _Group:
    calls: int = 0
    examples: list[UUID] = field(default_factory=list)
    recorded: Counter[tuple[policy_model.PolicyVerdict | None, str | None]] = field(default_factory=Counter)


class PolicyReplay:
    """Takes calls, the newest first, and counts what would become of them."""

    def __init__(self, before: CompiledPolicies, after: CompiledPolicies) -> None:
        self._before, self._after = before, after
        self._counts: Counter[str] = Counter()
        self._groups: dict[Key, _Group] = {}
        self.oldest: datetime | None = None

    def look_at(self, calls: Iterable[PastCall]) -> None:
        for call in calls:
            self._counts["looked_at"] += 1
            self._counts["governed"] += call.governed
            self.oldest = call.created_at
            facts = _facts(call)
            if facts is None:
                self._counts["unknown"] += 1
                continue
            demands = tuple(call.request_policies or ())
            self._compare(call, _decide(self._before, facts, demands), _decide(self._after, facts, demands))

    def _compare(self, call: PastCall, before: policy_model.PolicyDecision, after: policy_model.PolicyDecision) -> None:
        if call.recorded_verdict is not None and call.recorded_verdict is not before.verdict:
            self._counts["drifted"] += 1
        terms = different_terms(before.terms, after.terms)
        was, becomes = _judged(before), _judged(after)
        if was.verdict is becomes.verdict and not terms:
            self._counts["unchanged"] += 1
            self._counts["other_rule"] += was.rule != becomes.rule
            return
        way = direction(before, after)
        self._counts["changed"] += 1
        self._counts[way] += 1
        group = self._groups.setdefault((call.tool_name, call.agent, was, becomes, tuple(terms), way), _Group())
        group.calls += 1
        group.recorded[call.recorded_verdict, _without_version(call.recorded_rule)] += 1
        if len(group.examples) < MAX_EXAMPLES:
            group.examples.append(call.id)

    @property
    def totals(self) -> SimulationTotals:
        return SimulationTotals(**{name: self._counts[name] for name in SimulationTotals.__slots__})

    @property
    def left_out(self) -> list[str]:
        governed = self._counts["governed"]
        return [LEFT_OUT.format(governed=governed)] if governed else []

    @property
    def total_groups(self) -> int:
        return len(self._groups)

    def groups(self) -> list[ChangeGroup]:
        order = sorted(self._groups.items(), key=lambda each: (-each[1].calls, each[0][0], each[0][1]))
        return [_change_group(key, group) for key, group in order[:MAX_GROUPS]]


def _change_group(key: Key, group: _Group) -> ChangeGroup:
    tool, agent, before, after, terms, direction = key
    return ChangeGroup(
        tool=tool,
        agent=agent,
        direction=direction,
        before=before,
        after=after,
        terms=list(terms),
        calls=group.calls,
        recorded=[
            Recorded(verdict=verdict, rule=rule, calls=calls)
            for (verdict, rule), calls in group.recorded.most_common(MAX_EXAMPLES)
        ],
        examples=group.examples,
    )


def _facts(call: PastCall) -> policy_model.CallFacts | None:
    if call.risk is None or call.read_only is None or not isinstance(call.arguments, dict):
        return None
    return policy_model.CallFacts(
        target=call.tool_name,
        arguments=call.arguments,
        read_only=call.read_only,
        risk=highest_risk(call.risk, call.known_risk),
        agent=call.agent,
        teams=call.teams,
        session_kind=call.session_kind,
    )


def _decide(
    policies: CompiledPolicies, facts: policy_model.CallFacts, demands: tuple[policy_model.PolicyRow, ...]
) -> policy_model.PolicyDecision:
    decision = policies.decide(facts, demands)
    if facts.session_kind == SessionKind.EXTERNAL and facts.read_only and decision.rule.startswith("default:"):
        # That a call only reads is its agent's claim: it counts where a row looks at it.
        decision = policies.decide(replace(facts, read_only=False), demands)
    return decision


def _judged(decision: policy_model.PolicyDecision) -> Judged:
    return Judged(verdict=decision.verdict, rule=_without_version(decision.rule) or "")


def _without_version(rule: str | None) -> str | None:
    """Two versions of a row are the same row."""
    return None if rule is None else rule.partition("@")[0]


def different_terms(before: policy_model.Terms | None, after: policy_model.Terms | None) -> list[str]:
    if before is None or after is None:
        return []
    return [
        name
        for name in policy_model.Terms.__slots__
        if name not in NOT_COMPARED and getattr(before, name) != getattr(after, name)
    ]


def direction(before: policy_model.PolicyDecision, after: policy_model.PolicyDecision) -> Direction:
    """Which way a change goes. Of terms only those count that make a yes harder or easier to come by."""
    if change := policy_model.STRICTNESS[after.verdict] - policy_model.STRICTNESS[before.verdict]:
        return Direction.STRICTER if change > 0 else Direction.LOOSER
    if before.terms is None or after.terms is None:
        return Direction.OTHERWISE
    comparisons = set()
    for name, at_least in _AT_LEAST_AS_STRICT.items():
        old, new = getattr(before.terms, name), getattr(after.terms, name)
        if old != new:
            comparisons.add((at_least(new, old), at_least(old, new)))
    if comparisons == {(True, False)}:
        return Direction.STRICTER
    return Direction.LOOSER if comparisons == {(False, True)} else Direction.OTHERWISE


def _quorum_is_at_least(one: policy_model.Quorum, other: policy_model.Quorum) -> bool:
    votes = {share.role: share.votes for share in one.roles}
    return one.votes >= other.votes and all(votes.get(share.role, 0) >= share.votes for share in other.roles)


def _are_among(few: policy_model.Approvers, many: policy_model.Approvers) -> bool:
    return (many.owner or not few.owner) and set(few.roles) <= set(many.roles) and set(few.members) <= set(many.members)


_AT_LEAST_AS_STRICT: dict[str, Callable[[Any, Any], bool]] = {
    "required_clearance": operator.ge,
    "timeout_seconds": operator.le,
    "quorum": _quorum_is_at_least,
    "approvers": _are_among,
    "self_approval": operator.le,
    "standing": operator.le,
}
