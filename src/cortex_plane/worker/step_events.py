"""What the events of a step say. Each only points at what stands in the step; readers get the text with it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from cortex_plane.agents.model.completions import Response, StopReason
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.sessions.model.events import EventType
from cortex_plane.worker.calls import Call

PREVIEW = 500
_SPOKEN = (EventType.MESSAGE, EventType.TOOL_CALL, EventType.COMPLETION)

Told = list[tuple[str, dict[str, Any]]]


def said(step: int, text: str | None) -> Told:
    return [(EventType.MESSAGE, {"role": "assistant", "step": step})] if (text or "").strip() else []


def called(step: int, text: str | None, calls: Sequence[Call]) -> Told:
    """The response is recorded, and nothing was sent yet."""
    return [
        *said(step, text),
        *(
            (
                EventType.TOOL_CALL,
                {"step": step, "id": str(call.id), "tool": call.name, "input_hash": call.input_hash},
            )
            for call in calls
        ),
    ]


def settled(step: int, calls: Sequence[Call]) -> Told:
    return [(EventType.TOOL_RESULT, _result(step, call)) for call in calls]


def completed(step: int, text: str) -> Told:
    """The status comes last: whoever watches the job leaves with it."""
    return [
        *said(step, text),
        (EventType.COMPLETION, {"step": step}),
        (EventType.STATUS, {"status": JobStatus.COMPLETED}),
    ]


def by(response: Response, told: Told) -> Told:
    """The same, with who answered and why it stopped, where that needs a word."""
    more: dict[str, Any] = {} if response.model is None else {"model": response.model}
    if response.stop_reason in (StopReason.MAX_TOKENS, StopReason.REFUSAL):
        more["stop_reason"] = response.stop_reason
    return [(kind, data | more if kind in _SPOKEN else data) for kind, data in told]


def failed(error: str) -> Told:
    return [
        (EventType.ERROR, {"message": error[:PREVIEW]}),
        (EventType.STATUS, {"status": JobStatus.FAILED, "error": error[:PREVIEW]}),
    ]


def tried_again(error: str) -> Told:
    return [
        (EventType.ERROR, {"message": error[:PREVIEW], "retry": True}),
        (EventType.STATUS, {"status": JobStatus.RETRY, "error": error[:PREVIEW]}),
    ]


def _result(step: int, call: Call) -> dict[str, Any]:
    told = {"step": step, "id": str(call.id), "tool": call.name, "status": str(call.status)}
    return told if call.error is None else told | {"error": call.error[:PREVIEW]}


def outcome(call: Call) -> dict[str, Any]:
    """How a call ended, for the trail: with the digest of its result, so that the row which keeps it can be compared."""
    told = {"id": str(call.id), "tool": call.name, "status": str(call.status)}
    if call.status is not CallStatus.COMPLETED or call.result is None:
        return told
    return {**told, "result_hash": hashlib.sha256(call.result).hexdigest()}


def replied(text: str | None) -> dict[str, Any]:
    """The digest of a reply, for the trail."""
    return {} if text is None else {"reply_sha256": hashlib.sha256(text.encode()).hexdigest()}
