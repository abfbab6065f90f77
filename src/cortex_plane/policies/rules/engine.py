"""The policy engine: five levels, most specific first, over an index of rows."""

from __future__ import annotations

import functools
import heapq
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import UUID

from cortex_plane.kernel.conditions import Condition, ConditionFailed, Surroundings
from cortex_plane.kernel.globs import Glob
from cortex_plane.policies.model.policies import (
    STRICTNESS,
    CallFacts,
    Considered,
    Explanation,
    Level,
    Limited,
    PolicyDecision,
    PolicyRow,
    PolicySet,
    PolicyVerdict,
    Terms,
    stricter,
)
from cortex_plane.policies.rules.terms import (
    Origins,
    both_terms,
    how_strict,
    limit_terms,
    own_approvers,
    requested_terms,
    resolve_terms,
    row_saying,
    term_said,
    tighten_terms,
)

_ASK = PolicyVerdict.REQUIRES_APPROVAL
DEFAULT_READ_ONLY = "default:read_only"
DEFAULT_OWNER = "default:owner"
MAX_KNOWN = 4096
"""Conclusions that are kept: by which rows matched, and not by calls."""
MAX_KEY = 32
"""Where arguments make more rows than this unsure, their conclusion is not worth its room."""
_UNTOLD = "nobody can tell which of them matches"


@dataclass(frozen=True, slots=True)
class _Match:
    level: Level
    row: PolicyRow
    sure: bool = True


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

    def become(self, other: _Standing) -> None:
        self.verdict, self.rule = other.verdict, other.rule
        self.terms, self.origins = other.terms, other.origins


@dataclass(frozen=True, slots=True)
class _Answer:
    """What a level says."""

    matches: Sequence[_Match]
    """Its first match; where nobody can tell whether that is one, what follows up to the first that surely is."""
    limit: _Match | None
    """Those of them, in one row, that limit what is more specific."""

    @property
    def sure(self) -> bool:
        return self.matches[-1].sure

    @property
    def surely_limits(self) -> bool:
        return self.sure and len({(match.row.effect, match.row.final) for match in self.matches}) == 1

    @property
    def asks_the_same(self) -> bool:
        """Whether all of them name the same people."""
        rows = [match.row for match in self.matches]
        return len(rows) == 1 or len({row.effect is _ASK and own_approvers(row) for row in rows}) == 1


@dataclass(frozen=True, slots=True)
class _Walk:
    """What each level answered, the most specific first."""

    answers: Sequence[_Answer]
    platform: PolicyRow | None

    @property
    def deciding(self) -> Iterator[tuple[int, _Match]]:
        """Every match that could be the most specific one, with the place of its level."""
        for place, answer in enumerate(self.answers):
            for match in answer.matches:
                yield place, match
            if answer.sure:
                return

    @property
    def limits(self) -> list[int]:
        """The places of those that limit what is more specific."""
        return [place for place, answer in enumerate(self.answers) if answer.limit is not None]

    def above(self, place: int) -> list[PolicyRow]:
        """Up to whom it escalates: as far as that can be told."""
        return _steps(self.answers[place + 1 :])


def _steps(answers: Sequence[_Answer]) -> list[PolicyRow]:
    known = itertools.takewhile(lambda answer: answer.asks_the_same, answers)
    return [answer.matches[0].row for answer in known]


class CompiledPolicies:
    """The rows of an org, ready for verdicts without any query."""

    def __init__(self, policies: PolicySet) -> None:
        self.version = policies.version
        self.confirmed = policies.confirmed
        """What stewards confirmed about tools, by app, name and digest."""
        self._platform = LevelIndex(policies.platform)
        self._org = LevelIndex(policies.org)
        self._teams: dict[UUID, LevelIndex] = {id: LevelIndex(rows) for id, rows in policies.teams.items()}
        self._known: dict[tuple[Any, ...], tuple[PolicyDecision, Origins]] = {}
        self.weight = sum(each.weight for each in (self._platform, self._org, *self._teams.values()))

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
        given = surroundings(facts)
        asked = _matches(Level.REQUEST, _of_request(tuple(request)), facts, given, trace) if request else []
        matches = [
            match
            for level, index in self._levels(facts)
            for match in _matches(level, index, facts, given, trace)
        ]
        if asked or trace is not None or len(matches) > MAX_KEY:
            return self._concluded(facts, matches, asked, trace)
        # The rows live as long as this does: the same ones come to the same conclusion.
        key = (facts.read_only, *((match.level, id(match.row), match.sure) for match in matches))
        known = self._known.get(key)
        if known is None:
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            known = self._known[key] = self._concluded(facts, matches, asked, None)
        return known

    def _concluded(
        self, facts: CallFacts, matches: Sequence[_Match], asked: Sequence[_Match], trace: _Trace | None
    ) -> tuple[PolicyDecision, Origins]:
        walk = self._walk(matches)
        standing = self._decided(walk, trace) if walk.answers else _by_default(facts)
        if trace is not None and not walk.answers:
            trace.decided_by = standing.rule
        if asked:
            standing = self._tightened(standing, asked, walk, trace)
        terms = standing.terms if standing.verdict is _ASK else None
        return PolicyDecision(verdict=standing.verdict, rule=standing.rule, terms=terms), standing.origins

    def _levels(self, facts: CallFacts) -> Iterator[tuple[Level, LevelIndex]]:
        for level, team in zip((Level.TEAM, Level.PARENT_TEAM), facts.teams, strict=False):
            index = self._teams.get(team)
            if index is not None:
                yield level, index
        yield Level.ORG, self._org
        yield Level.PLATFORM, self._platform

    def _walk(self, matches: Sequence[_Match]) -> _Walk:
        platform: PolicyRow | None = None
        answers: list[_Answer] = []
        levels = [list(group) for _, group in itertools.groupby(matches, key=lambda match: match.level)]
        for of_level in reversed(levels):
            of_platform = of_level[0].level is Level.PLATFORM
            limiting = [match for match in of_level if match.row.final or of_platform]
            limit = self._as_one(limiting, platform, _steps(answers)) if limiting else None
            if of_platform and limit is not None:
                platform = limit.row
            answers.insert(0, _Answer(of_level, limit))
        return _Walk(answers, platform)

    def _as_one(
        self, matches: Sequence[_Match], platform: PolicyRow | None, above: Sequence[PolicyRow]
    ) -> _Match:
        """A row that is no looser than any of these."""
        if len(matches) == 1:
            return matches[0]
        first, standing = self._together(
            [(match, self._standing_of(match, platform, above)) for match in matches], None
        )
        if standing.terms is None:
            return first
        for match in matches:
            if match.row.effect is not _ASK:  # what is more specific inherits from it too
                inherited, _ = resolve_terms(match.row, platform)
                standing.terms, _ = both_terms(standing.terms, {}, inherited, "")
        final = any(match.row.final for match in matches)
        return _Match(first.level, replace(row_saying(first.row, standing.terms), final=final))

    def _decided(self, walk: _Walk, trace: _Trace | None) -> _Standing:
        """What the most specific match says within its limits; where several could be that one, all of them together."""
        found: list[tuple[_Match, _Standing]] = []
        told: list[list[Limited]] = []
        for place, match in walk.deciding:
            standing = self._standing_of(match, walk.platform, walk.above(place))
            for limited in self._within_limits(standing, walk, place, [] if trace is not None else None):
                found.append((match, limited[0]))
                told.append(limited[1] or [])
        if trace is not None:
            first = max(range(len(found)), key=lambda place: _strictness(found[place]))
            trace.decided_by = self._rule(found[first][0])
            trace.limits += told[first]
        return self._together(found, trace)[1]

    def _within_limits(
        self, standing: _Standing, walk: _Walk, place: int, told: list[Limited] | None
    ) -> Iterator[tuple[_Standing, list[Limited] | None]]:
        """What its limits make of it: also without one that raises it, where nobody can tell whether that one does."""
        for limit in walk.limits:
            if limit > place:
                before = replace(standing)
                self._limit(standing, walk, range(place, limit), limit, told)
                if before.verdict is not standing.verdict and not walk.answers[limit].surely_limits:
                    yield from self._within_limits(before, walk, limit, told and told[:-1])
        yield standing, told

    def _standing_of(
        self, match: _Match, platform: PolicyRow | None, above: Sequence[PolicyRow]
    ) -> _Standing:
        rule = self._rule(match)
        if match.row.effect is not _ASK:
            return _Standing(match.row.effect, rule, None, {})
        return _Standing(_ASK, rule, *resolve_terms(match.row, platform, above))

    def _together(
        self, found: Sequence[tuple[_Match, _Standing]], trace: _Trace | None
    ) -> tuple[_Match, _Standing]:
        """What is no looser than any of these: the strictest of them, within the terms of the others."""
        first, standing = max(found, key=_strictness)
        if len(found) == 1 or standing.terms is None:
            return first, standing
        standing = replace(standing)
        every = [(match, other.terms) for match, other in found if other.terms is not None]
        owner = all(terms.approvers.owner and terms.self_approval for _, terms in every)
        for match, terms in every:
            before = replace(standing)
            standing.terms, standing.origins = both_terms(
                standing.terms or terms, standing.origins, terms, f"limit {self._rule(match)}", owner=owner
            )
            if trace is not None and match is not first:
                trace.limits.append(_limited(match, _UNTOLD, before, standing))
        return first, standing

    def _limit(
        self, standing: _Standing, walk: _Walk, below: range, place: int, told: list[Limited] | None
    ) -> None:
        """A row that is final, or the platform's: nothing more specific is looser than it."""
        before = replace(standing)
        match = walk.answers[place].limit
        if match is None:
            return
        if STRICTNESS[match.row.effect] > STRICTNESS[standing.verdict]:
            standing.become(self._standing_of(match, walk.platform, walk.above(place)))
            self._hold(standing, walk, below)
        else:
            self._hold(standing, walk, [place])
        if told is not None:
            why = "final" if match.row.final else "the platform's match is a ceiling"
            told.append(_limited(match, why, before, standing))

    def _hold(self, standing: _Standing, walk: _Walk, places: Sequence[int]) -> None:
        """The terms stay within these limits."""
        for place in places:
            limit, held = walk.answers[place].limit, standing.terms
            if limit is None or held is None:
                continue
            rule = self._rule(limit)
            terms, origins = limit_terms(
                held, standing.origins, limit.row, walk.platform, walk.above(place), rule
            )
            if not walk.answers[place].surely_limits:  # then those whom it names do not decide alone
                terms, origins = both_terms(held, standing.origins, terms, f"limit {rule}")
            standing.terms, standing.origins = terms, origins

    def _tightened(
        self, standing: _Standing, asked: Sequence[_Match], walk: _Walk, trace: _Trace | None
    ) -> _Standing:
        """What the request demands, where that is stricter than what the rest said."""
        each = [(match, self._tighten(replace(standing), match, walk)) for match in asked]
        if trace is None:
            return self._together(each, None)[1]
        first = max(each, key=_strictness)
        trace.limits.append(_limited(first[0], "a request only tightens", standing, first[1]))
        return self._together(each, trace)[1]

    def _tighten(self, standing: _Standing, match: _Match, walk: _Walk) -> _Standing:
        asked = match.row
        if stricter(asked.effect, standing.verdict) is not standing.verdict:
            standing.become(_Standing(asked.effect, self._rule(match), None, {}))
            if asked.effect is _ASK:
                standing.terms, standing.origins = requested_terms(asked, walk.platform, walk.above(-1))
                self._hold(standing, walk, range(len(walk.answers)))
        elif standing.terms is not None and asked.effect is _ASK:
            standing.terms, standing.origins = tighten_terms(
                standing.terms,
                standing.origins,
                asked,
                self._rule(match),
                by_default=standing.rule == DEFAULT_OWNER,
            )
        return standing

    def _rule(self, match: _Match) -> str:
        return f"{match.level}:{match.row.name}@{self.version}"


def _by_default(facts: CallFacts) -> _Standing:
    if facts.read_only:
        return _Standing(PolicyVerdict.ALLOW, DEFAULT_READ_ONLY, None, {})
    return _Standing(_ASK, DEFAULT_OWNER, *resolve_terms(None, None))


@functools.lru_cache(maxsize=128)
def _of_request(rows: tuple[PolicyRow, ...]) -> LevelIndex:
    """A job asks with the same rows for each of its calls."""
    return LevelIndex(rows)


def surroundings(facts: CallFacts) -> Surroundings:
    """What conditions look at in a call."""
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


def _matches(
    level: Level, index: LevelIndex, facts: CallFacts, given: Surroundings, trace: _Trace | None
) -> list[_Match]:
    """The first row of a level that matches. One of which nobody can tell does not end the walk: an agent must not step
    around a stricter row by making the condition of an earlier one fail."""
    found: list[_Match] = []
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
        if matched:
            found.append(_Match(level, compiled.row, sure))
            if sure:
                break
    return found


def _strictness(found: tuple[_Match, _Standing]) -> tuple[int, ...]:
    standing = found[1]
    return (STRICTNESS[standing.verdict], *(how_strict(standing.terms) if standing.terms is not None else ()))


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
                changes.append(f"{name} {term_said(name, old)} → {term_said(name, new)}")
    return Limited(level=match.level, name=match.row.name, why=why, changes=changes)


MAX_CROWD = 1000
"""Rows that are found by the same text; each of them costs time with every call that has it."""

OF_ROW = 2048
"""Bytes that a row takes."""
OF_CONDITION = 64
"""Bytes that a compiled condition takes for each of its characters."""
OF_DETAILS = 8
"""And what a request shows of itself."""


@dataclass(frozen=True, slots=True)
class CompiledRow:
    position: int
    row: PolicyRow
    glob: Glob
    condition: Condition | None


Places = dict[str, list[CompiledRow]]


@dataclass(slots=True)
class _Targets:
    """The rows of one action type."""

    exact: Places = field(default_factory=dict)
    prefix: Places = field(default_factory=dict)
    suffix: Places = field(default_factory=dict)
    middle: Places = field(default_factory=dict)
    anything: list[CompiledRow] = field(default_factory=list)
    prefix_lengths: tuple[int, ...] = ()
    suffix_lengths: tuple[int, ...] = ()
    middle_lengths: tuple[int, ...] = ()
    closed: set[str] = field(default_factory=set)
    """Targets that have an unconditional row."""

    def add(self, compiled: CompiledRow) -> None:
        target = compiled.row.target
        if target in self.closed:
            return
        if compiled.condition is None:
            self.closed.add(target)
        self._place(compiled.glob).append(compiled)

    def _place(self, glob: Glob) -> list[CompiledRow]:
        if glob.exact:
            return self.exact.setdefault(glob.prefix, [])
        middle = max(glob.middles, key=len, default="")
        if not (glob.prefix or glob.suffix or middle):
            return self.anything
        if len(glob.prefix) >= max(len(glob.suffix), len(middle)):
            return self.prefix.setdefault(glob.prefix, [])
        if len(glob.suffix) >= len(middle):
            return self.suffix.setdefault(glob.suffix, [])
        return self.middle.setdefault(middle, [])

    def seal(self) -> None:
        self.prefix_lengths = tuple(sorted({len(text) for text in self.prefix}))
        self.suffix_lengths = tuple(sorted({len(text) for text in self.suffix}))
        self.middle_lengths = tuple(sorted({len(text) for text in self.middle}))

    def places(self, target: str) -> list[list[CompiledRow]]:
        found = [self.anything] if self.anything else []
        size = len(target)
        _collect(found, self.exact, (target,))
        _collect(found, self.prefix, (target[:n] for n in self.prefix_lengths if n <= size))
        _collect(found, self.suffix, (target[size - n :] for n in self.suffix_lengths if n <= size))
        if self.middle_lengths:
            parts = {target[at : at + n] for n in self.middle_lengths for at in range(size - n + 1)}
            _collect(found, self.middle, parts)
        return found

    def crowds(self) -> Iterator[tuple[str, list[CompiledRow]]]:
        for places in (self.exact, self.prefix, self.suffix, self.middle, {"*": self.anything}):
            yield from places.items()


def _collect(
    found: list[list[CompiledRow]], places: Places, keys: Iterator[str] | Sequence[str] | set[str]
) -> None:
    if places:
        for key in keys:
            rows = places.get(key)
            if rows is not None:
                found.append(rows)


class LevelIndex:
    """The rows of one level."""

    __slots__ = ("_by_action", "weight")

    def __init__(self, rows: Sequence[PolicyRow]) -> None:
        self._by_action: dict[str, _Targets] = {}
        conditions: dict[str, Condition] = {}
        for position, row in enumerate(rows):
            condition = None
            if row.condition is not None:
                condition = conditions.get(row.condition) or Condition.of(row.condition)
                conditions[row.condition] = condition
            targets = self._by_action.setdefault(row.action_type, _Targets())
            targets.add(CompiledRow(position, row, Glob.of(row.target), condition))
        for targets in self._by_action.values():
            targets.seal()
        details = sum(len(str(row.details)) for row in rows if row.details is not None)
        self.weight = OF_ROW * len(rows) + OF_CONDITION * sum(map(len, conditions)) + OF_DETAILS * details
        """Bytes of memory that it takes, about, and rather more than less."""

    def candidates(self, action_type: str, target: str) -> Iterator[CompiledRow]:
        """In the order of their file; their globs are still to be compared."""
        targets = self._by_action.get(action_type)
        if targets is None:
            return iter(())
        places = targets.places(target)
        if len(places) == 1:
            return iter(places[0])
        return heapq.merge(*places, key=_position)

    def crowds(self) -> Iterator[tuple[str, int]]:
        """Texts by which more rows are found than a verdict may cost."""
        for targets in self._by_action.values():
            for text, rows in targets.crowds():
                if len(rows) > MAX_CROWD:
                    yield text, len(rows)


def _position(compiled: CompiledRow) -> int:
    return compiled.position
