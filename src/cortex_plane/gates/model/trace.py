"""What gates leave on a session's trail, with the names that spec 5 has for it. Nobody else knows these names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cortex_plane.sessions.model.events import TraceType

if TYPE_CHECKING:
    from cortex_plane.gates.model.atlases import Gate


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    type: TraceType
    payload: dict[str, Any]
    sync: bool = False
    """It is durable before anything else happens."""


def trace(kind: TraceType, gate: Gate, **payload: Any) -> Trace:
    named = {"atlas_id": gate.atlas_id, "checkpoint_id": gate.gate_id, **payload}
    return Trace(type=kind, payload=named, sync=gate.force_sync_trace)


def triggered(gate: Gate, data: dict[str, Any]) -> Trace:
    return trace(
        TraceType.TRIGGERED, gate, checkpoint_type=gate.trigger.type, mode=gate.mode, trigger_data=data
    )


def skipped(gate: Gate, reason: str, others: int = 0) -> Trace:
    """A gate that was not looked at, or could not be asked whether it fires. ``others``: so many more, for the same reason."""
    more = {"others": others} if others else {}
    return trace(TraceType.SKIPPED, gate, checkpoint_type=gate.trigger.type, reason=reason, **more)


def gate_in(payload: Mapping[str, Any]) -> Any:
    """The id of the gate that a trace tells of."""
    return payload.get("checkpoint_id")


def type_in(payload: Mapping[str, Any]) -> Any:
    return payload.get("checkpoint_type")
