"""The events of a step. Each only names the step; readers get its text with it."""

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

Events = list[tuple[str, dict[str, Any]]]


def text_events(step: int, text: str | None) -> Events:
    return [(EventType.MESSAGE, {"role": "assistant", "step": step})] if (text or "").strip() else []


def call_events(step: int, text: str | None, calls: Sequence[Call]) -> Events:
    """The response is recorded, and none of its calls was sent yet."""
    return [
        *text_events(step, text),
        *(
            (EventType.TOOL_CALL, {"step": step, "id": str(call.id), "tool": call.name, "input_hash": call.input_hash})
            for call in calls
        ),
    ]


def result_events(step: int, calls: Sequence[Call]) -> Events:
    return [(EventType.TOOL_RESULT, _result(step, call)) for call in calls]


def completion_events(step: int, text: str) -> Events:
    """The status comes last: a reader that watches the job stops there."""
    return [
        *text_events(step, text),
        (EventType.COMPLETION, {"step": step}),
        (EventType.STATUS, {"status": JobStatus.COMPLETED}),
    ]


def with_model(response: Response, events: Events) -> Events:
    """The same, with the model that answered, and its stop reason where the answer is cut off or refused."""
    extra: dict[str, Any] = {} if response.model is None else {"model": response.model}
    if response.stop_reason in (StopReason.MAX_TOKENS, StopReason.REFUSAL):
        extra["stop_reason"] = response.stop_reason
    return [(kind, data | extra if kind in _SPOKEN else data) for kind, data in events]


def failure_events(error: str) -> Events:
    return [
        (EventType.ERROR, {"message": error[:PREVIEW]}),
        (EventType.STATUS, {"status": JobStatus.FAILED, "error": error[:PREVIEW]}),
    ]


def retry_events(error: str) -> Events:
    return [
        (EventType.ERROR, {"message": error[:PREVIEW], "retry": True}),
        (EventType.STATUS, {"status": JobStatus.RETRY, "error": error[:PREVIEW]}),
    ]


def _result(step: int, call: Call) -> dict[str, Any]:
    event = {"step": step, "id": str(call.id), "tool": call.name, "status": str(call.status)}
    return event if call.error is None else event | {"error": call.error[:PREVIEW]}


def call_outcome(call: Call) -> dict[str, Any]:
    """How a call ended, for the audit trail: with the digest of its result, so that its row can be compared."""
    outcome = {"id": str(call.id), "tool": call.name, "status": str(call.status)}
    if call.status is not CallStatus.COMPLETED or call.result is None:
        return outcome
    return {**outcome, "result_hash": hashlib.sha256(call.result).hexdigest()}


def reply_digest(text: str | None) -> dict[str, Any]:
    """The digest of a reply, for the audit trail."""
    return {} if text is None else {"reply_sha256": hashlib.sha256(text.encode()).hexdigest()}
