"""What stewards are told of: made here, written with the facts themselves, sent by the outbox. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from cortex_plane.agents.model.tools import RISKS, Risk
from cortex_plane.gates.model.atlases import Atlas, AtlasPolicyType
from cortex_plane.gates.model.trace import Trace
from cortex_plane.gates.rules.gate_effects import TOO_MUCH, UNANSWERED
from cortex_plane.gates.rules.gate_index import CompiledAtlases

OVERRIDE, HIGH_RISK = "policy_override", "high_risk_action"
ON_THE_TRAIL = "the session's trail says why"
_KEPT_BACK = frozenset({"answers", "faults"})
_WRITTEN = frozenset({"error", "requested"})
"""Of what fired a gate: what tools and agents wrote."""
_PLAIN_REASONS = frozenset({UNANSWERED, TOO_MUCH})
"""They say the same whatever was answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanCall:
    """A call that this very write sends."""

    action: str
    risk: Risk
    """The tool's own; of it and the atlases', the higher counts."""
    call_id: str | None = None


def notices(
    governing: CompiledAtlases, traces: Sequence[Trace], ran: Sequence[RanCall] = ()
) -> list[dict[str, Any]]:
    """For `more.gates.notices` of the write that records ``traces`` and sends ``ran``; empty where no steward wants any."""
    wanted = [atlas for atlas in governing.atlases if atlas.steward.webhook and atlas.steward.notify_on]
    if not wanted:
        return []
    return [
        *(each for trace in traces for each in _of_trace(wanted, trace)),
        *(each for call in ran for each in _of_call(governing, wanted, call)),
    ]


def _of_trace(wanted: Sequence[Atlas], trace: Trace) -> Iterator[dict[str, Any]]:
    """The steward of a gate is told of it, and no other."""
    for atlas in wanted:
        if trace.payload.get("atlas_id") == atlas.atlas_id and trace.type in atlas.steward.notify_on:
            yield _notice(atlas, trace.type, _told(trace.payload))


def _told(payload: dict[str, Any]) -> dict[str, Any]:
    """Without what agents and tools wrote: a wrong answer is repeated in why it was refused, an error may hold anything."""
    told = {name: value for name, value in payload.items() if name not in _KEPT_BACK}
    if isinstance(fired_by := told.get("trigger_data"), dict):
        told["trigger_data"] = {name: value for name, value in fired_by.items() if name not in _WRITTEN}
    if "reason" in told and told["reason"] not in _PLAIN_REASONS:
        told["reason"] = ON_THE_TRAIL
    return told


def _of_call(governing: CompiledAtlases, wanted: Sequence[Atlas], call: RanCall) -> Iterator[dict[str, Any]]:
    risk = governing.risk_of(call.action, call.risk)
    facts = {"action_id": call.action, "call_id": call.call_id, "risk_tier": risk.value}
    demanded = [
        key
        for key, policy in governing.policies_of(call.action)
        if policy.type is AtlasPolicyType.REQUIRES_APPROVAL
    ]
    for atlas in wanted:
        # A policy's key is its atlas, a slash and its id.
        own = [key.removeprefix(prefix) for key in demanded if key.startswith(prefix := f"{atlas.atlas_id}/")]
        if own and OVERRIDE in atlas.steward.notify_on:
            yield _notice(atlas, OVERRIDE, {**facts, "policy_ids": own})
        if RISKS.index(risk) >= RISKS.index(Risk.HIGH) and HIGH_RISK in atlas.steward.notify_on:
            yield _notice(atlas, HIGH_RISK, facts)


def _notice(atlas: Atlas, trigger: str, data: dict[str, Any]) -> dict[str, Any]:
    return {
        "url": atlas.steward.webhook,
        "atlas_id": atlas.atlas_id,
        "version": atlas.version,
        "steward": atlas.steward.id,
        "trigger": str(trigger),
        "data": data,
    }
