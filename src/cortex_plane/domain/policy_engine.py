"""Verdicts: the walk through the levels, its three limits, and the terms that come out of it.

Each level answers with its first matching row. The most specific answer decides; what is less specific and final, and
the platform's match always, then limits it; and what the request itself demands may only tighten the rest. The same
walk decides and explains, so that an explanation cannot say something else than what happens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from uuid import UUID

from cortex_plane.domain.authorization import STRICTNESS, PolicyVerdict
from cortex_plane.domain.conditions import ConditionFailed, Surroundings
from cortex_plane.domain.policies import (
    CallFacts,
    Level,
    PolicyDecision,
    PolicyRow,
    PolicySet,
    Terms,
    stricter,
)
from cortex_plane.domain.policy_index import CompiledRow, LevelIndex
from cortex_plane.domain.policy_terms import Origins, limit_terms, resolve_terms, tighten_terms

_ASK = PolicyVerdict.REQUIRES_APPROVAL
DEFAULT_READ_ONLY = "default:read_only"
DEFAULT_OWNER = "default:owner"


@dataclass(frozen=True, kw_only=True, slots=True)
class Considered:
    """One row that the walk looked at."""

    level: Level
    name: str
    target: str
    effect: PolicyVerdict
    matched: bool
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Limited:
    """What a limit did."""

    level: Level
    name: str
    why: str
    changes: list[str]
    """Empty: it changed nothing."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Explanation:
    version: str
    considered: list[Considered]
    decided_by: str
    """The row that the walk ended with, before limits."""
    limits: list[Limited]
    decision: PolicyDecision
    origins: dict[str, str]
    """Where each term came from."""


@dataclass(frozen=True, slots=True)
class _Match:
    level: Level
    row: PolicyRow


@dataclass(slots=True)
class _Trace:
    considered: list[Considered] = field(default_factory=list)
    limits: list[Limited] = field(default_factory=list)
    decided_by: str = ""


@dataclass(slots=True)
class _Standing:
    """What holds so far."""

    verdict: PolicyVerdict
    rule: str
    terms: Terms | None
    origins: Origins


class CompiledPolicies:
    """The rows of an org, ready for verdicts without any query."""

    def __init__(self, policies: PolicySet) -> None:
        self.version = policies.version
        self.size = policies.size
        self._platform = LevelIndex(policies.platform)
        self._org = LevelIndex(policies.org)
        self._teams: dict[UUID, LevelIndex] = {id: LevelIndex(rows) for id, rows in policies.teams.items()}

    def decide(self, facts: CallFacts, request: Sequence[PolicyRow] = ()) -> PolicyDecision:
        return self._run(facts, request, None)[0]

    def explain(self, facts: CallFacts, request: Sequence[PolicyRow] = ()) -> Explanation:
        trace = _Trace()
        decision, origins = self._run(facts, request, trace)
        return Explanation(
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
        given = _surroundings(facts)
        asked = _first(Level.REQUEST, _of_request(tuple(request)), facts, given, trace) if request else None
        matches = [
            match
            for level, index in self._levels(facts)
            if (match := _first(level, index, facts, given, trace)) is not None
        ]
        platform = matches[-1].row if matches and matches[-1].level is Level.PLATFORM else None
        standing = self._begin(facts, matches, platform)
        if trace is not None:
            trace.decided_by = standing.rule
        for match in matches[1:]:
            if match.row.final or match.level is Level.PLATFORM:
                self._limit(standing, match, platform, trace)
        if asked is not None:
            self._tighten(standing, asked, platform, trace)
        terms = standing.terms if standing.verdict is _ASK else None
        return PolicyDecision(verdict=standing.verdict, rule=standing.rule, terms=terms), standing.origins

    def _levels(self, facts: CallFacts) -> Iterator[tuple[Level, LevelIndex]]:
        for level, team in zip((Level.TEAM, Level.PARENT_TEAM), facts.teams, strict=False):
            index = self._teams.get(team)
            if index is not None:
                yield level, index
        yield Level.ORG, self._org
        yield Level.PLATFORM, self._platform

    def _begin(self, facts: CallFacts, matches: Sequence[_Match], platform: PolicyRow | None) -> _Standing:
        """What the most specific match says, or the default where none does."""
        if matches:
            return self._standing_of(matches[0], platform)
        if facts.read_only:
            return _Standing(PolicyVerdict.ALLOW, DEFAULT_READ_ONLY, None, {})
        return _Standing(_ASK, DEFAULT_OWNER, *resolve_terms(None, None))

    def _standing_of(self, match: _Match, platform: PolicyRow | None) -> _Standing:
        rule = self._rule(match)
        if match.row.effect is not _ASK:
            return _Standing(match.row.effect, rule, None, {})
        return _Standing(_ASK, rule, *resolve_terms(match.row, platform))

    def _limit(
        self, standing: _Standing, match: _Match, platform: PolicyRow | None, trace: _Trace | None
    ) -> None:
        """A row that is final, or the platform's: nothing more specific is looser than it."""
        before = replace(standing)
        limit = match.row
        if STRICTNESS[limit.effect] > STRICTNESS[standing.verdict]:
            raised = self._standing_of(match, platform)
            standing.verdict, standing.rule = raised.verdict, raised.rule
            standing.terms, standing.origins = raised.terms, raised.origins
        elif standing.terms is not None:
            standing.terms, standing.origins = limit_terms(
                standing.terms, standing.origins, limit, platform, self._rule(match)
            )
        if trace is not None:
            why = "final" if limit.final else "the platform's match is a ceiling"
            trace.limits.append(_limited(match, why, before, standing))

    def _tighten(
        self, standing: _Standing, match: _Match, platform: PolicyRow | None, trace: _Trace | None
    ) -> None:
        """What the request demands, where that is stricter than what the rest said."""
        before = replace(standing)
        asked = match.row
        if stricter(asked.effect, standing.verdict) is not standing.verdict:
            raised = self._standing_of(match, platform)
            standing.verdict, standing.rule = raised.verdict, raised.rule
            standing.terms, standing.origins = raised.terms, raised.origins
        elif standing.terms is not None and asked.effect is _ASK:
            standing.terms, standing.origins = tighten_terms(
                standing.terms, standing.origins, asked, self._rule(match)
            )
        if trace is not None:
            trace.limits.append(_limited(match, "a request only tightens", before, standing))

    def _rule(self, match: _Match) -> str:
        return f"{match.level}:{match.row.name}@{self.version}"


@functools.lru_cache(maxsize=512)
def _of_request(rows: tuple[PolicyRow, ...]) -> LevelIndex:
    """A job asks with the same rows for each of its calls."""
    return LevelIndex(rows)


def _surroundings(facts: CallFacts) -> Surroundings:
    return Surroundings(
        facts.arguments,
        {
            "tool": facts.target,
            "risk": facts.risk.value,
            "read_only": facts.read_only,
            "agent": facts.agent,
            "session_kind": facts.session_kind,
            "action_type": facts.action_type,
        },
    )


def _first(
    level: Level, index: LevelIndex, facts: CallFacts, given: Surroundings, trace: _Trace | None
) -> _Match | None:
    """The first row of a level that matches. One of which nobody can tell does not end the walk: an agent chooses its own
    arguments, and must not step around a stricter row by making an earlier one fail."""
    unsure: PolicyRow | None = None
    for compiled in index.candidates(facts.action_type, facts.target):
        matched, reason, sure = _applies(compiled, facts.target, given)
        if trace is not None:
            row = compiled.row
            trace.considered.append(
                Considered(
                    level=level,
                    name=row.name,
                    target=row.target,
                    effect=row.effect,
                    matched=matched,
                    reason=reason,
                )
            )
        if matched and not sure:
            unsure = compiled.row if unsure is None else _stricter(unsure, compiled.row)
        elif matched:
            return _Match(level, compiled.row if unsure is None else _stricter(unsure, compiled.row))
    return None if unsure is None else _Match(level, unsure)


def _stricter(first: PolicyRow, then: PolicyRow) -> PolicyRow:
    return then if STRICTNESS[then.effect] > STRICTNESS[first.effect] else first


def _applies(compiled: CompiledRow, target: str, given: Surroundings) -> tuple[bool, str, bool]:
    """Whether a row matches, why, and whether that is sure. Where nobody can tell whether a condition holds, the safe side
    counts: a permission does not match, the rest does."""
    if not compiled.glob.matches(target):
        return False, "the target does not match", True
    if compiled.condition is None:
        return True, "the target matches", True
    try:
        holds = compiled.condition.holds(given)
    except ConditionFailed as error:
        matched = compiled.row.effect is not PolicyVerdict.ALLOW
        counts = "counts as a match" if matched else "counts as no match"
        return (
            matched,
            f"the condition failed ({error}): {counts}, because the row says {compiled.row.effect}",
            False,
        )
    return holds, "target and condition match" if holds else "the condition is false", True


def _limited(match: _Match, why: str, before: _Standing, after: _Standing) -> Limited:
    changes = []
    if before.verdict is not after.verdict:
        changes.append(f"effect {before.verdict} → {after.verdict}")
    elif before.terms is not None and after.terms is not None:
        for name in Terms.__slots__:
            old, new = getattr(before.terms, name), getattr(after.terms, name)
            if old != new:
                changes.append(f"{name} {old} → {new}")
    return Limited(level=match.level, name=match.row.name, why=why, changes=changes)
