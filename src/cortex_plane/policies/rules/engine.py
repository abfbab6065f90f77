"""The policy engine: five levels, most specific first, over an index of rows.

A row whose condition cannot be evaluated counts on the safe side: a deny or requires_approval matches, an allow does not, and
the walk goes on. Then several rows of a level could be the one that matches. Each combination of them is decided as if it were
sure, and the strictest decision holds, within the terms of all others.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from cortex_plane.kernel.conditions import Condition, ConditionFailed, Surroundings
from cortex_plane.kernel.globs import GlobIndex
from cortex_plane.policies.model import policies as policy_model
from cortex_plane.policies.model.policies import CallFacts, Level, Limited, PolicyDecision, PolicyRow, PolicyVerdict
from cortex_plane.policies.rules import terms as policy_terms
from cortex_plane.policies.rules.terms import Origins, both_terms, how_strict, limit_terms, resolve_terms, term_said

_ASK = PolicyVerdict.REQUIRES_APPROVAL
DEFAULT_READ_ONLY = "default:read_only"
DEFAULT_OWNER = "default:owner"
DEFAULT_UNSURE = "default:unsure"
MAX_CONCLUSIONS = 4096
"""Conclusions that are remembered: by which rows matched, and not by calls."""
MAX_KEY = 32
"""Where arguments make more rows than this unsure, their conclusion is not remembered."""
MAX_COMBINATIONS = 4096
"""Combinations of unsure rows that are decided; beyond it the call is denied."""
_UNSURE = "nobody can tell which of them matches"


@dataclass(frozen=True, slots=True)
class _Match:
    level: Level
    row: PolicyRow
    sure: bool = True
    """False: its condition cannot be evaluated."""

    @property
    def limits(self) -> bool:
        """Nothing more specific is looser than it."""
        return self.row.final or self.level is Level.PLATFORM


@dataclass(slots=True)
class _Trace:
    considered: list[policy_model.Considered] = field(default_factory=list)
    limits: list[Limited] = field(default_factory=list)
    decided_by: str = ""


@dataclass(slots=True)
class _Standing:
    """What holds so far."""

    verdict: PolicyVerdict
    rule: str
    terms: policy_model.Terms | None
    origins: Origins
    reason: str | None = None
    """Of the row that the rule names."""

    @property
    def strictness(self) -> tuple[int, ...]:
        return (policy_model.STRICTNESS[self.verdict], *(how_strict(self.terms) if self.terms is not None else ()))


@dataclass(frozen=True, slots=True)
class _Walk:
    """One match of each level that has one, the most specific first."""

    matches: Sequence[_Match]

    @property
    def platform(self) -> PolicyRow | None:
        last = self.matches[-1] if self.matches else None
        return last.row if last is not None and last.level is Level.PLATFORM else None

    def above(self, place: int) -> list[PolicyRow]:
        """Up to whom a row escalates."""
        return [match.row for match in self.matches[place + 1 :]]


def _walks(matches: Sequence[_Match]) -> list[_Walk] | None:
    """Every walk that could be the case; None where there are too many. A sure match of a level ends the choice of the
    first. Above the first, a level without a sure match may also have none: its limits would then not hold."""
    levels = [list(group) for _, group in itertools.groupby(matches, key=lambda match: match.level)]
    choices: list[list[_Match | None]] = [[*level] if level[-1].sure else [*level, None] for level in levels]
    walks: list[_Walk] = []
    for first, level in enumerate(levels):
        if len(walks) + len(level) * math.prod(map(len, choices[first + 1 :])) > MAX_COMBINATIONS:
            return None
        for choice in itertools.product(level, *choices[first + 1 :]):
            walks.append(_Walk([match for match in choice if match is not None]))
        if level[-1].sure:
            break
    return walks or [_Walk(())]


class CompiledPolicies:
    """The rows of an org, ready for verdicts without any query."""

    def __init__(self, policies: policy_model.PolicySet) -> None:
        self.version = policies.version
        self.confirmed = policies.confirmed
        """What stewards confirmed about tools, by app, name and digest."""
        self._platform = LevelIndex(policies.platform)
        self._org = LevelIndex(policies.org)
        self._teams: dict[UUID, LevelIndex] = {id: LevelIndex(rows) for id, rows in policies.teams.items()}
        self._conclusions: dict[tuple[Any, ...], tuple[PolicyDecision, Origins]] = {}
        self._decisions: dict[tuple[Any, ...], PolicyDecision] = {}
        self.rows = len(policies.platform) + len(policies.org) + sum(map(len, policies.teams.values()))

    def decide(self, facts: CallFacts, request: Sequence[PolicyRow] = ()) -> PolicyDecision:
        """Remembered where no condition looks at arguments: agents call the same few tools again and again."""
        if request:
            return self._run(facts, request, None)[0]
        key = (
            facts.target, facts.action_type, facts.risk, facts.read_only, facts.allowed_by, facts.agent,
            facts.session_kind, *facts.teams,
        )  # fmt: skip
        decision = self._decisions.get(key)
        if decision is None:
            decision = self._run(facts, (), None)[0]
            if not self._looks_at_arguments(facts):
                if len(self._decisions) >= MAX_CONCLUSIONS:
                    self._decisions.clear()
                self._decisions[key] = decision
        return decision

    def _looks_at_arguments(self, facts: CallFacts) -> bool:
        return any(
            row.condition is not None and "args" in row.condition.variables
            for _, index in self._levels(facts)
            for row in index.find(facts.action_type, facts.target)
        )

    def denies_outright(self, facts: CallFacts) -> bool:
        """Whether the rows deny the call whatever its arguments are. Where that is not certain, the answer is no. No condition is
        evaluated: a conditional row may match."""
        may_be_decided = False
        for level, index in self._levels(facts):
            if may_be_decided and level is not Level.PLATFORM:
                continue
            for entry in index.find(facts.action_type, facts.target):
                if entry.row.effect is not PolicyVerdict.DENY:
                    may_be_decided = True  # for some arguments at least; what the platform denies stays denied
                    break
                if entry.condition is None:
                    return True
        return False

    def explain(self, facts: CallFacts, request: Sequence[PolicyRow] = ()) -> policy_model.Explanation:
        trace = _Trace()
        decision, origins = self._run(facts, request, trace)
        return policy_model.Explanation(
            version=self.version,
            considered=trace.considered,
            decided_by=trace.decided_by,
            limits=trace.limits,
            decision=decision,
            origins=origins if decision.terms is not None else {},
        )

    def _run(
        self, facts: CallFacts, request: Sequence[PolicyRow], trace: _Trace | None
    ) -> tuple[PolicyDecision, Origins]:
        context = surroundings(facts)
        demands = _matches(Level.REQUEST, _request_index(tuple(request)), facts, context, trace) if request else []
        matches = [
            match for level, index in self._levels(facts) for match in _matches(level, index, facts, context, trace)
        ]
        if demands or trace is not None or len(matches) > MAX_KEY:
            return self._conclude(facts, matches, demands, trace)
        # The rows live as long as this object: the same rows lead to the same conclusion.
        key = (facts.read_only, facts.allowed_by, *((match.level, id(match.row), match.sure) for match in matches))
        conclusion = self._conclusions.get(key)
        if conclusion is None:
            if len(self._conclusions) >= MAX_CONCLUSIONS:
                self._conclusions.clear()
            conclusion = self._conclusions[key] = self._conclude(facts, matches, demands, None)
        return conclusion

    def _levels(self, facts: CallFacts) -> Iterator[tuple[Level, LevelIndex]]:
        for level, team in zip((Level.TEAM, Level.PARENT_TEAM), facts.teams, strict=False):
            if (index := self._teams.get(team)) is not None:
                yield level, index
        yield Level.ORG, self._org
        yield Level.PLATFORM, self._platform

    def _conclude(
        self, facts: CallFacts, matches: Sequence[_Match], demands: Sequence[_Match], trace: _Trace | None
    ) -> tuple[PolicyDecision, Origins]:
        walks = _walks(matches)
        if walks is None:
            standing = _Standing(PolicyVerdict.DENY, DEFAULT_UNSURE, None, {})
        elif matches:
            standing = self._decide(walks, trace)
        elif facts.read_only:
            standing = _Standing(PolicyVerdict.ALLOW, DEFAULT_READ_ONLY, None, {})
        elif facts.allowed_by:
            standing = _Standing(PolicyVerdict.ALLOW, facts.allowed_by, None, {})
        else:
            standing = _Standing(_ASK, DEFAULT_OWNER, *resolve_terms(None, None))
        if trace is not None and (walks is None or not matches):
            trace.decided_by = standing.rule
        if demands and walks is not None:
            standing = self._tighten(standing, demands, walks, trace)
        terms = standing.terms if standing.verdict is _ASK else None
        limit = None
        if terms is not None and standing.origins["timeout_seconds"] == "default":
            rows = [match.row for match in (*matches, *demands) if match.limits or match.level is Level.REQUEST]
            limits = [policy_terms.own_term(row, "timeout_seconds") or policy_model.MAX_TIMEOUT_SECONDS for row in rows]
            limit = min(limits, default=policy_model.MAX_TIMEOUT_SECONDS)
        decision = PolicyDecision(
            verdict=standing.verdict, rule=standing.rule, terms=terms, own_time_limit=limit, reason=standing.reason
        )
        return decision, standing.origins

    def _decide(self, walks: Sequence[_Walk], trace: _Trace | None) -> _Standing:
        """What the most specific match says within its limits; of several walks, all of them together."""
        outcomes = []
        for walk in walks:
            limits: list[Limited] | None = [] if trace is not None else None
            outcomes.append((walk.matches[0], self._decide_walk(walk, limits), limits))
        if trace is not None:
            strictest, _, limits = max(outcomes, key=lambda outcome: outcome[1].strictness)
            trace.decided_by = self._rule(strictest)
            trace.limits += limits or []
        return self._combine([(match, standing) for match, standing, _ in outcomes], trace)

    def _decide_walk(self, walk: _Walk, trace: list[Limited] | None) -> _Standing:
        standing = self._standing_of(walk, 0)
        for place, match in enumerate(walk.matches):
            if place == 0 or not match.limits:
                continue
            before = replace(standing)
            if policy_model.STRICTNESS[match.row.effect] > policy_model.STRICTNESS[standing.verdict]:
                standing = self._standing_of(walk, place)
                self._hold(standing, walk, range(place))
            else:
                self._hold(standing, walk, [place])
            if trace is not None:
                why = "final" if match.row.final else "the platform's match is a ceiling"
                trace.append(_limited(match, why, before, standing))
        return standing

    def _standing_of(self, walk: _Walk, place: int) -> _Standing:
        match = walk.matches[place]
        rule = self._rule(match)
        if match.row.effect is not _ASK:
            return _Standing(match.row.effect, rule, None, {}, match.row.reason)
        return _Standing(_ASK, rule, *resolve_terms(match.row, walk.platform, walk.above(place)), match.row.reason)

    def _hold(self, standing: _Standing, walk: _Walk, places: Sequence[int]) -> None:
        """Keep the terms within the limits that stand at these places."""
        for place in places:
            match = walk.matches[place]
            if match.limits and standing.terms is not None:
                standing.terms, standing.origins = limit_terms(
                    standing.terms, standing.origins, match.row, walk.platform, walk.above(place),
                    self._rule(match),
                )  # fmt: skip

    def _combine(self, outcomes: Sequence[tuple[_Match, _Standing]], trace: _Trace | None) -> _Standing:
        """What is no looser than any of these: the strictest of them, within the terms of the others."""
        first, standing = max(outcomes, key=lambda outcome: outcome[1].strictness)
        if len(outcomes) == 1 or standing.terms is None:
            return standing
        standing = replace(standing)
        others = [(match, other.terms) for match, other in outcomes if other.terms is not None]
        owner = all(terms.approvers.owner and terms.self_approval for _, terms in others)
        for match, terms in others:
            before = replace(standing)
            standing.terms, standing.origins = both_terms(
                standing.terms or terms, standing.origins, terms, f"limit {self._rule(match)}", owner=owner
            )
            if trace is not None and match is not first and before.terms != standing.terms:
                trace.limits.append(_limited(match, _UNSURE, before, standing))
        return standing

    def _tighten(
        self, standing: _Standing, demands: Sequence[_Match], walks: Sequence[_Walk], trace: _Trace | None
    ) -> _Standing:
        """What the request demands, where that is stricter than what the rest said."""
        outcomes = [(match, self._demand(replace(standing), match, walks)) for match in demands]
        if trace is not None:
            match, strictest = max(outcomes, key=lambda outcome: outcome[1].strictness)
            trace.limits.append(_limited(match, "a request only tightens", standing, strictest))
        return self._combine(outcomes, trace)

    def _demand(self, standing: _Standing, match: _Match, walks: Sequence[_Walk]) -> _Standing:
        row = match.row
        if policy_model.stricter(row.effect, standing.verdict) is not standing.verdict:
            if row.effect is not _ASK:
                return _Standing(row.effect, self._rule(match), None, {})
            return self._combine([(match, self._demand_within(match, walk)) for walk in walks], None)
        if standing.terms is not None and row.effect is _ASK:
            standing.terms, standing.origins = policy_terms.tighten_terms(
                standing.terms, standing.origins, row, self._rule(match), by_default=standing.rule == DEFAULT_OWNER
            )
        return standing

    def _demand_within(self, match: _Match, walk: _Walk) -> _Standing:
        """An approval that nothing but the request asks for, within the limits of the walk."""
        terms = policy_terms.requested_terms(match.row, walk.platform, walk.above(-1))
        standing = _Standing(_ASK, self._rule(match), *terms)
        self._hold(standing, walk, range(len(walk.matches)))
        return standing

    def _rule(self, match: _Match) -> str:
        return f"{match.level}:{match.row.name}@{self.version}"


@functools.lru_cache(maxsize=128)
def _request_index(rows: tuple[PolicyRow, ...]) -> LevelIndex:
    """A job asks with the same rows for each of its calls."""
    return LevelIndex(rows)


def surroundings(facts: CallFacts) -> Surroundings:
    """What conditions look at in a call."""
    return Surroundings(
        facts.arguments,
        {
            "tool": facts.target,
            "risk": str(facts.risk),
            "read_only": facts.read_only,
            "agent": facts.agent,
            "session_kind": facts.session_kind,
            "action_type": facts.action_type,
        },
    )


def _matches(
    level: Level, index: LevelIndex, facts: CallFacts, context: Surroundings, trace: _Trace | None
) -> list[_Match]:
    """The first row of a level that matches, after those that might: an agent must not step around a stricter row by making
    the condition of an earlier one fail."""
    matches: list[_Match] = []
    for entry in index.find(facts.action_type, facts.target):
        row = entry.row
        matches_row, reason, sure = _applies(entry, context)
        if trace is not None:
            trace.considered.append(
                policy_model.Considered(
                    level=level, name=row.name, target=row.target, effect=row.effect, matched=matches_row, reason=reason,
                )
            )  # fmt: skip
        if matches_row:
            matches.append(_Match(level, row, sure))
            if sure:
                break
    return matches


def _applies(entry: CompiledRow, context: Surroundings) -> tuple[bool, str, bool]:
    """Whether a row whose target matches does, why, and whether that is sure."""
    if entry.condition is None:
        return True, "the target matches", True
    try:
        holds = entry.condition.holds(context)
    except ConditionFailed as error:
        effect = entry.row.effect
        matches_row = effect is not PolicyVerdict.ALLOW
        counts = "counts as a match" if matches_row else "counts as no match"
        return matches_row, f"the condition failed ({error}): {counts}, because the row says {effect}", False
    return holds, "target and condition match" if holds else "the condition is false", True


def _limited(match: _Match, why: str, before: _Standing, after: _Standing) -> Limited:
    changes = []
    if before.verdict is not after.verdict:
        changes.append(f"effect {before.verdict} → {after.verdict}")
    elif before.terms is not None and after.terms is not None:
        for name in policy_model.Terms.__slots__:
            old, new = getattr(before.terms, name), getattr(after.terms, name)
            if old != new:
                changes.append(f"{name} {term_said(name, old)} → {term_said(name, new)}")
    return Limited(level=match.level, name=match.row.name, why=why, changes=changes)


@dataclass(frozen=True, slots=True)
class CompiledRow:
    position: int
    row: PolicyRow
    condition: Condition | None


class LevelIndex:
    """The rows of one level, by action type and target."""

    __slots__ = ("_by_action",)

    def __init__(self, rows: Sequence[PolicyRow]) -> None:
        conditions = {text: Condition.of(text) for row in rows if (text := row.condition) is not None}
        by_action: dict[str, list[tuple[str, CompiledRow]]] = {}
        for position, row in enumerate(rows):
            condition = conditions[row.condition] if row.condition is not None else None
            entry = row.target, CompiledRow(position, row, condition)
            by_action.setdefault(row.action_type, []).append(entry)
        self._by_action: Mapping[str, GlobIndex[CompiledRow]] = {
            action: GlobIndex(entries) for action, entries in by_action.items()
        }

    def find(self, action_type: str, target: str) -> Sequence[CompiledRow]:
        """The rows whose target matches, in the order of their file."""
        index = self._by_action.get(action_type)
        return index.find(target) if index is not None else ()
