"""The events of a session, in order.

The table below is the whole vocabulary; docs/reference/events.md is generated from it. An event is sent after its transaction
has committed. The one exception is a text chunk: it shows what a model is writing, and is deleted once its step is recorded.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field


class EventType(StrEnum):
    MESSAGE = "message"
    TEXT_CHUNK = "text_chunk"
    STEP_RESTARTED = "step_restarted"
    TOOL_CALL = "tool_call"
    TOOL_RESULT = "tool_result"
    COMPLETION = "completion"
    STATUS = "status"
    ERROR = "error"
    SESSION_PAUSED = "session_paused"
    SESSION_RESUMED = "session_resumed"
    WORKER_LOST = "worker_lost"
    BUDGET_SPENT = "budget_spent"
    CONTEXT_COMPACTED = "context_compacted"
    EFFECT_SETTLED = "effect_settled"
    SIGNAL_RECEIVED = "signal_received"
    APPROVAL_REQUESTED = "approval_requested"
    APPROVAL_DECIDED = "approval_decided"
    APPROVAL_EXPIRED = "approval_expired"
    APPROVAL_CANCELLED = "approval_cancelled"
    APPROVAL_REMINDED = "approval_reminded"
    APPROVAL_VOTED = "approval_voted"
    APPROVAL_DELEGATED = "approval_delegated"
    APPROVAL_ESCALATED = "approval_escalated"
    CHECKPOINT_TRIGGERED = "checkpoint_triggered"
    CHECKPOINT_RESPONSE = "checkpoint_response"
    CHECKPOINT_PASSED = "checkpoint_passed"
    CHECKPOINT_BLOCKED = "checkpoint_blocked"
    CHECKPOINT_SKIPPED = "checkpoint_skipped"


class TraceType(StrEnum):
    """What gates did, as the session's chain names it."""

    TRIGGERED = "checkpoint_triggered"
    RESPONSE = "checkpoint_response"
    PASSED = "checkpoint_passed"
    BLOCKED = "checkpoint_blocked"
    SKIPPED = "checkpoint_skipped"
    """Left out because of a budget."""


FIELDS: Mapping[TraceType, tuple[str, ...]] = {
    TraceType.TRIGGERED: ("atlas_id", "checkpoint_id", "checkpoint_type", "mode", "trigger_data"),
    TraceType.RESPONSE: ("atlas_id", "checkpoint_id", "answers", "validation_result", "faults?", "action_id?"),
    TraceType.PASSED: (
        "atlas_id", "checkpoint_id", "unlocked_capabilities", "injected_contexts", "locked_capabilities?", "more?",
    ),
    TraceType.BLOCKED: ("atlas_id", "checkpoint_id", "reason", "blocked_action?"),
    TraceType.SKIPPED: (
        "atlas_id", "checkpoint_id", "reason", "checkpoint_type?", "context_id?", "guidance?", "others?",
    ),
}  # fmt: skip
"""The fields of each; a field with ``?`` is optional."""


@dataclass(frozen=True, slots=True)
class Carries:
    """What an event means, and the fields of its data; a field with ``?`` is optional."""

    meaning: str
    fields: tuple[str, ...]


_T = EventType
CARRIES: dict[EventType, Carries] = {
    _T.MESSAGE: Carries(
        "A message was added to the session. A message of the agent has the text of one step and replaces its chunks.",
        ("role", "seq?", "step?", "text?", "truncated?", "model?", "stop_reason?"),
    ),
    _T.TEXT_CHUNK: Carries(
        "A piece of the answer that the model is writing. Chunks are deleted when the step is recorded; its `message` has the "
        "whole text.",
        ("step", "epoch", "text"),
    ),
    _T.STEP_RESTARTED: Carries(
        "An attempt ended in the middle of its answer. Drop the earlier chunks of this step.", ("step", "epoch")
    ),
    _T.TOOL_CALL: Carries(
        "The model calls a tool. The call is recorded; its `tool_result` tells whether it was sent.",
        ("step", "id", "tool", "input_hash", "model?", "stop_reason?"),
    ),
    _T.TOOL_RESULT: Carries(
        "The call is settled: `completed`, `failed` or `rejected`. The step has its result.",
        ("step", "id", "tool", "status", "error?"),
    ),
    _T.COMPLETION: Carries(
        "The job is completed. The event has its answer.", ("step", "text?", "truncated?", "model?", "stop_reason?")
    ),
    _T.STATUS: Carries(
        "The status of the job changed, or will change at its next boundary. Without a job: the status of the session.",
        (
            "status?",
            "session?",
            "reason?",
            "error?",
            "open_approvals?",
            "hold?",
            "holds?",
            "note?",
            "pending_pause?",
            "pending_cancel?",
        ),
    ),
    _T.ERROR: Carries("Why the job failed, or why it is retried.", ("message", "retry?")),
    _T.SESSION_PAUSED: Carries(
        "The session is held until somebody resumes it or answers.",
        ("reason?", "pause_source?", "by?", "tools?", "calls?", "prompt?", "why?"),
    ),
    _T.SESSION_RESUMED: Carries(
        "The session continues: a hold was lifted, or the last decision was made.",
        ("by?", "approval_id?", "resumed_by_approval?"),
    ),
    _T.WORKER_LOST: Carries("The worker of the job died. Another worker takes the job over.", ("worker", "epoch")),
    _T.CONTEXT_COMPACTED: Carries(
        "The window was full. Its older turns were replaced by a summary and facts, written by the `model` or as an `extract`.",
        ("step", "message_seq", "turns", "by", "facts", "facts_dropped", "tokens_before", "tokens_after"),
    ),
    _T.BUDGET_SPENT: Carries(
        "The agent spent its daily budget. The job sleeps until the next day (UTC).", ("message", "budget")
    ),
    _T.EFFECT_SETTLED: Carries(
        "A person answered whether an uncertain call happened.", ("call", "tool", "verdict", "note?")
    ),
    _T.SIGNAL_RECEIVED: Carries(
        "The job received a signal that it waits for. The journal entry has the payload.",
        ("signal_id", "name", "key", "entry"),
    ),
    _T.APPROVAL_REQUESTED: Carries(
        "A person must decide, and the job waits. `joined`: the call is identical to an earlier one, and one decision counts for both.",
        ("approval_id", "call", "tool", "kind", "joined"),
    ),
    _T.APPROVAL_DECIDED: Carries(
        "An approver approved or denied the request.", ("approval_id", "by", "decision", "version", "reason?")
    ),
    _T.APPROVAL_EXPIRED: Carries("The deadline passed without a decision.", ("approval_id",)),
    _T.APPROVAL_CANCELLED: Carries("The job or session ended before a decision.", ("approval_id",)),
    _T.APPROVAL_REMINDED: Carries("The deadline is near and there is no decision yet.", ("approval_id",)),
    _T.APPROVAL_VOTED: Carries(
        "An approver approved, and more votes are needed.", ("approval_id", "by", "decision", "version", "reason?")
    ),
    _T.APPROVAL_DELEGATED: Carries("An approver handed their part to another person.", ("approval_id", "by", "to")),
    _T.APPROVAL_ESCALATED: Carries("More people may decide. The deadline stays.", ("approval_id", "level")),
    _T.CHECKPOINT_TRIGGERED: Carries(
        "A [gate](../guides/gates.md) fired. Its `mode` says whether it asks, advises or only observes.",
        FIELDS[TraceType.TRIGGERED],
    ),
    _T.CHECKPOINT_RESPONSE: Carries(
        "The agent answered a gate: `valid`, `invalid` or `accepted_with_faults`.", FIELDS[TraceType.RESPONSE]
    ),
    _T.CHECKPOINT_PASSED: Carries("The agent passed a gate. Its effects apply from now on.", FIELDS[TraceType.PASSED]),
    _T.CHECKPOINT_BLOCKED: Carries(
        "A gate stopped the agent or the call of an action. `reason` says why.", FIELDS[TraceType.BLOCKED]
    ),
    _T.CHECKPOINT_SKIPPED: Carries(
        "A gate without questions, a context or a guidance was left out because of the budget that `reason` names.",
        FIELDS[TraceType.SKIPPED],
    ),
}

INBOX = frozenset({*(kind for kind in EventType if kind.startswith("approval_")), EventType.EFFECT_SETTLED})
"""Events that change the inbox."""

GATES = frozenset(kind for kind in EventType if kind.startswith("checkpoint_"))
"""Events of gates, by the names in the session's chain."""

EventNumber = Annotated[int, Field(ge=0, le=2**31 - 1)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    seq: int
    """Its place in the session; a stream resumes after it."""
    type: str
    """An ``EventType``, or one that a newer plane knows."""
    job_id: UUID | None
    data: dict[str, Any]
    created_at: datetime
