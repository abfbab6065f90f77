"""Authorizes a call: the strictest of gates and policies, and standing approvals after them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Protocol
from uuid import UUID

import orjson

from cortex_plane.gates.model.atlases import AtlasPolicy, AtlasPolicyType, Gate, Mode
from cortex_plane.gates.model.gates import GatedCall, Limit, Ruling, Window
from cortex_plane.gates.rules.effects import EvaluationRun
from cortex_plane.gates.rules.index import CompiledAtlases, OfAction, Round
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.globs import glob
from cortex_plane.policies.model.policies import CallFacts, PolicyDecision, PolicyRow, PolicyVerdict, Terms
from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.policies.rules.terms import both_terms, resolve_terms


class JobRef(Protocol):
    """The job that a call belongs to."""

    @property
    def org_id(self) -> UUID: ...
    @property
    def job_id(self) -> UUID: ...
    @property
    def session_id(self) -> UUID: ...
    @property
    def agent_id(self) -> UUID: ...


class Origin(Protocol):
    """What policies look at of whoever asks for a call."""

    @property
    def agent(self) -> str: ...
    @property
    def teams(self) -> Sequence[UUID]: ...
    @property
    def session_kind(self) -> str: ...


class CallJob(JobRef, Origin, Protocol):
    """The job that asks for a call: of a worker, or of an agent that runs elsewhere."""


class UnsentCall(Protocol):
    """A call before it is sent, wherever it runs."""

    @property
    def id(self) -> UUID: ...
    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str | None: ...
    @property
    def arguments(self) -> bytes: ...
    @property
    def input_hash(self) -> str: ...
    @property
    def risk(self) -> Risk: ...
    @property
    def declares_risk(self) -> bool: ...


def facts_of(job: Origin, call: UnsentCall, *, read_only: bool) -> CallFacts:
    """What policies look at."""
    return CallFacts(
        target=call.name, arguments=orjson.loads(call.arguments), read_only=read_only, risk=call.risk, agent=job.agent,
        teams=tuple(job.teams), session_kind=job.session_kind, declares_risk=call.declares_risk,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class StandingUse:
    """The standing approval that a call leans on, and by which version of its giver's row it was judged."""

    standing_id: UUID
    granter_revision: int
    counted: bool
    """It was counted for this very call, when that was sent before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Uncovered:
    """A call that needs a person's yes, and under which terms."""

    call_id: UUID
    tool_name: str
    tool_digest: str
    input_hash: str
    facts: CallFacts
    terms: Terms


@dataclass(frozen=True, slots=True)
class Authorization:
    decision: PolicyDecision
    leaning: StandingUse | None = None
    """Where a person's standing approval allows what policy alone does not."""

    @property
    def verdict(self) -> PolicyVerdict:
        return self.decision.verdict


def authorize(
    policies: CompiledPolicies,
    facts: CallFacts,
    request: Sequence[PolicyRow],
    *,
    turned_down: bool = False,
    ruling: Ruling | None = None,
    asks: Sequence[str] = (),
) -> PolicyDecision:
    """``turned_down``: a person said no to this very call before, in the same job. ``ruling``: what the gates of its session
    say; policies look at the risk that it names, and the stricter of the two holds. ``asks``: the gates whose questions refuse
    it now; a policy that denies it whatever is answered counts more."""
    if asks and ruling is not None:
        after_answers = replace(ruling, verdict=PolicyVerdict.ALLOW, asks=())
        after = authorize(policies, facts, request, turned_down=turned_down, ruling=after_answers)
        if after.verdict is PolicyVerdict.DENY:
            return after
    if ruling is not None:
        reads = facts.read_only and not ruling.strict
        facts = replace(facts, risk=ruling.risk, read_only=reads, allowed_by=allowing_rule(ruling, facts))
    decision = policies.decide(facts, request)
    if ruling is not None:
        decision = strictest(ruling, decision)
    if turned_down and decision.verdict is PolicyVerdict.REQUIRES_APPROVAL:
        decision = PolicyDecision(verdict=PolicyVerdict.DENY, rule="turned down before, and unchanged")
    return decision


SPOKEN_FOR = frozenset({Risk.LOW, Risk.MEDIUM})
"""Risks of tools for which an atlas may speak: what an agent understood never replaces a person before others."""


def allowing_rule(ruling: Ruling, facts: CallFacts) -> str:
    """The rule by which the atlases in force speak for a call, so that nobody is asked by default; empty where they do not.
    They do where they allow it and its tool declares low or medium risk, unless a gate demands that policies judge it."""
    speaks = ruling.verdict is PolicyVerdict.ALLOW and facts.declares_risk and ruling.risk in SPOKEN_FOR
    return ruling.rule if speaks and not ruling.strict else ""


def leaning_on(answer: Authorization, leaning: StandingUse) -> Authorization:
    """A standing approval speaks where a person would have to; what is denied stays denied."""
    if answer.verdict is not PolicyVerdict.REQUIRES_APPROVAL:
        raise AssertionError(f"a standing approval cannot turn {answer.verdict}")
    rule = f"standing:{leaning.standing_id}"
    return replace(answer, decision=PolicyDecision(verdict=PolicyVerdict.ALLOW, rule=rule), leaning=leaning)


LIMITING = (AtlasPolicyType.RATE_LIMIT, AtlasPolicyType.BUDGET)


def by_policies(
    work: EvaluationRun, call: GatedCall, rules: OfAction, people: Sequence[Gate]
) -> tuple[PolicyVerdict, str, str, AtlasPolicy | None]:
    """The first that matches decides. Whatever nothing allows is denied. ``people``: the gates that a person passes by
    approving the call."""
    allowing = _allowed(work, call.action, rules, people)
    approval: AtlasPolicy | None = None
    for key, policy in rules.policies:
        if policy.type is AtlasPolicyType.REQUIRES_APPROVAL:
            if not call.approved:
                return PolicyVerdict.REQUIRES_APPROVAL, f"atlas:{key}", policy.reason, policy
            approval = approval or policy
            allowing = allowing or (f"atlas:{key}", "a person approved it")
        if policy.type in LIMITING and (over := _over(key, policy, work.spent, work.now)) is not None:
            return PolicyVerdict.DENY, f"atlas:{key}", f"{policy.reason or 'its limit is reached'}: {over}", None
        if policy.type is AtlasPolicyType.ALLOW:
            allowing = allowing or (f"atlas:{key}", policy.reason)
    if allowing is not None:
        return PolicyVerdict.ALLOW, *allowing, approval
    return PolicyVerdict.DENY, "atlas:default", "no capability and no policy of its atlases allows it", None


def _allowed(work: EvaluationRun, action: str, rules: OfAction, people: Sequence[Gate]) -> tuple[str, str] | None:
    for capability in rules.capabilities:
        waiting = [gate for gate in work.atlases.guards(capability) if gate.key not in work.passed]
        # Where only people stand before it, their yes opens it.
        by_people = (
            all(gate.asks_people for gate in waiting) if waiting else any(gate.unlocks(capability) for gate in people)
        )
        if work.is_open(capability) or by_people:
            return f"capability:{capability}", ""
    for pattern, rule in sorted(work.actions.items()):
        if rule.allow and rule.by in work.atlases.gates and glob(pattern).matches(action):
            return f"gate:{rule.by}", ""
    for gate in people:
        if any(glob(pattern).matches(action) for pattern in gate.allow_actions):
            return f"gate:{gate.key}", ""
    return None


def _used(key: str, policy: AtlasPolicy, spent: Mapping[str, Window], now: datetime) -> Window:
    """What is used up of a limit now: nothing, once its window is over."""
    window = spent.get(key, Window(since=now, calls=0))
    ends = _end(policy, window)
    return window if ends is None or now < ends else Window(since=now, calls=0)


def _end(policy: AtlasPolicy, window: Window) -> datetime | None:
    return None if policy.window_seconds is None else window.since + timedelta(seconds=policy.window_seconds)


def _over(key: str, policy: AtlasPolicy, spent: Mapping[str, Window], now: datetime) -> str | None:
    window = _used(key, policy, spent, now)
    if policy.max_calls is None or window.calls < policy.max_calls:
        return None
    ends = _end(policy, window)
    again = f"; again after {ends.isoformat(timespec='seconds')}" if ends is not None and window.calls else ""
    return f"{window.calls} of {policy.max_calls} calls{again}"


def limits(work: EvaluationRun, rules: OfAction) -> list[Limit]:
    """Under what a call is allowed: how much is left, and until when a gate that comes round leaves the session alone.
    Who is only looking reads the second of all actions once: `time_limits`."""
    limiting = [_limit(key, policy, work.spent, work.now) for key, policy in rules.policies if policy.type in LIMITING]
    return limiting if work.looking else [*limiting, *time_limits(work.atlases, work.fired_at, work.now)]


def time_limits(atlases: CompiledAtlases, last_times: Mapping[str, datetime], now: datetime) -> Iterator[Limit]:
    for interval in atlases.timed:
        until = (last_round(last_times, interval, now) + timedelta(seconds=interval.every)).isoformat()
        for gate in interval.gates:
            if gate.mode is Mode.BLOCKING:
                yield Limit(kind="time_window", name=gate.key, detail={"until": until})


def _limit(key: str, policy: AtlasPolicy, spent: Mapping[str, Window], now: datetime) -> Limit:
    window = _used(key, policy, spent, now)
    remaining = None if policy.max_calls is None else max(0, policy.max_calls - window.calls)
    detail: dict[str, Any] = {"max_calls": policy.max_calls, "left": remaining, "window_seconds": policy.window_seconds}
    if (ends := _end(policy, window)) is not None and window.calls:
        detail["until"] = ends.isoformat()
    return Limit(kind=policy.type, name=key, detail=detail)


def last_round(last_times: Mapping[str, datetime], each: Round, now: datetime) -> datetime:
    """When gates that come round did so last; at first, when the session met their atlas."""
    return last_times.get(each.name) or last_times.get(each.atlas_id) or now


def charged(rules: OfAction, spent: Mapping[str, Window], now: datetime) -> dict[str, Window]:
    limits = [(key, policy) for key, policy in rules.policies if policy.type in LIMITING]
    windows = {key: _used(key, policy, spent, now) for key, policy in limits}
    return {key: Window(since=window.since, calls=window.calls + 1) for key, window in windows.items()}


def strictest(ruling: Ruling, decision: PolicyDecision) -> PolicyDecision:
    """Where gates want a person, no standing approval speaks for one."""
    if ruling.verdict is PolicyVerdict.DENY:
        return PolicyDecision(verdict=PolicyVerdict.DENY, rule=ruling.rule)
    if decision.verdict is PolicyVerdict.DENY or ruling.verdict is PolicyVerdict.ALLOW:
        return decision
    return PolicyDecision(verdict=PolicyVerdict.REQUIRES_APPROVAL, rule=ruling.rule, terms=_terms(ruling, decision))


def _terms(ruling: Ruling, decision: PolicyDecision) -> Terms:
    """What fulfils both: the template of the atlas, and what a policy says where it wants a person too."""
    row = PolicyRow(name=ruling.rule, target="*", effect=PolicyVerdict.REQUIRES_APPROVAL, template=ruling.template)
    terms, _ = resolve_terms(row, None)
    if decision.terms is not None:
        terms, _ = both_terms(decision.terms, {}, terms, ruling.rule)
    return replace(terms, standing=False)
