"""What the policies of atlases say of a call, and what their limits have left: approval → rate limit → budget → allow → deny."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from typing import Any

from cortex_plane.gates.model.atlases import AtlasPolicy, AtlasPolicyType, Mode
from cortex_plane.gates.model.gates import GatedCall, Limit, Window
from cortex_plane.gates.rules.gate_effects import EvaluationRun
from cortex_plane.gates.rules.gate_index import CompiledAtlases, OfAction, Round
from cortex_plane.kernel.glob_index import glob
from cortex_plane.policies.model.authorization import PolicyVerdict

LIMITING = (AtlasPolicyType.RATE_LIMIT, AtlasPolicyType.BUDGET)


def by_policies(
    work: EvaluationRun, call: GatedCall, found: OfAction
) -> tuple[PolicyVerdict, str, str, AtlasPolicy | None]:
    """The first that matches decides. Whatever nothing allows is denied."""
    allowed = _allowed(work, call.action, found)
    approval: AtlasPolicy | None = None
    for key, policy in found.policies:
        if policy.type is AtlasPolicyType.REQUIRES_APPROVAL:
            if not call.approved:
                return PolicyVerdict.REQUIRES_APPROVAL, f"atlas:{key}", policy.reason, policy
            approval = approval or policy
            allowed = allowed or (f"atlas:{key}", "a person approved it")
        if policy.type in LIMITING and (over := _over(key, policy, work.spent, work.now)) is not None:
            reason = f"{policy.reason or 'its limit is reached'}: {over}"
            return PolicyVerdict.DENY, f"atlas:{key}", reason, None
        if policy.type is AtlasPolicyType.ALLOW:
            allowed = allowed or (f"atlas:{key}", policy.reason)
    if allowed is not None:
        return PolicyVerdict.ALLOW, *allowed, approval
    return PolicyVerdict.DENY, "atlas:default", "no capability and no policy of its atlases allows it", None


def _allowed(work: EvaluationRun, action: str, found: OfAction) -> tuple[str, str] | None:
    for capability in found.capabilities:
        waiting = [gate for gate in work.atlases.guards(capability) if gate.key not in work.passed]
        # Where only people stand before it, their yes opens it.
        if work.is_open(capability) or (waiting and all(gate.asks_people for gate in waiting)):
            return f"capability:{capability}", ""
    for pattern, rule in sorted(work.actions.items()):
        if rule.allow and rule.by in work.atlases.gates and glob(pattern).matches(action):
            return f"gate:{rule.by}", ""
    return None


def _used(key: str, policy: AtlasPolicy, spent: Mapping[str, Window], now: datetime) -> Window:
    """What is used up of a limit now: nothing, once its window is over."""
    used = spent.get(key)
    over = (
        used is not None
        and policy.window_seconds is not None
        and now >= used.since + timedelta(seconds=policy.window_seconds)
    )
    return Window(since=now, calls=0) if used is None or over else used


def _over(key: str, policy: AtlasPolicy, spent: Mapping[str, Window], now: datetime) -> str | None:
    used = _used(key, policy, spent, now)
    if policy.max_calls is None or used.calls < policy.max_calls:
        return None
    said = f"{used.calls} of {policy.max_calls} calls"
    if policy.window_seconds is None or used.calls == 0:
        return said
    ends = used.since + timedelta(seconds=policy.window_seconds)
    return f"{said}; again after {ends.isoformat(timespec='seconds')}"


def limits(work: EvaluationRun, found: OfAction) -> list[Limit]:
    """Under what a call is allowed: how much is left, and until when a gate that comes round leaves the session alone.

    Who is only looking reads the second of all actions once: `time_limits`.
    """
    limiting = [
        _limit(key, policy, work.spent, work.now) for key, policy in found.policies if policy.type in LIMITING
    ]
    return limiting if work.looking else [*limiting, *time_limits(work.atlases, work.fired_at, work.now)]


def time_limits(atlases: CompiledAtlases, fired: Mapping[str, datetime], now: datetime) -> Iterator[Limit]:
    for each in atlases.timed:
        until = (last_round(fired, each, now) + timedelta(seconds=each.every)).isoformat()
        for gate in each.gates:
            if gate.mode is Mode.BLOCKING:
                yield Limit(kind="time_window", name=gate.key, detail={"until": until})


def _limit(key: str, policy: AtlasPolicy, spent: Mapping[str, Window], now: datetime) -> Limit:
    used = _used(key, policy, spent, now)
    left = None if policy.max_calls is None else max(0, policy.max_calls - used.calls)
    detail: dict[str, Any] = {
        "max_calls": policy.max_calls,
        "left": left,
        "window_seconds": policy.window_seconds,
    }
    if policy.window_seconds is not None and used.calls:
        detail["until"] = (used.since + timedelta(seconds=policy.window_seconds)).isoformat()
    return Limit(kind=policy.type, name=key, detail=detail)


def last_round(fired: Mapping[str, datetime], each: Round, now: datetime) -> datetime:
    """When gates that come round did so last; at first, when the session met their atlas."""
    return fired.get(each.name) or fired.get(each.atlas_id) or now


def charged(found: OfAction, spent: Mapping[str, Window], now: datetime) -> dict[str, Window]:
    after = {}
    for key, policy in found.policies:
        if policy.type in LIMITING:
            used = _used(key, policy, spent, now)
            after[key] = Window(since=used.since, calls=used.calls + 1)
    return after
