"""Events: what happens in a session, in order, for whoever watches it.

The table below is the whole vocabulary; docs/reference/events.md is written from it. Events are facts that were committed: what
they describe is durable when they are seen. The one exception is a text chunk, which shows what a model is saying and
disappears once its step is recorded.
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
    """Left out for a budget."""


FIELDS: Mapping[TraceType, tuple[str, ...]] = {
    TraceType.TRIGGERED: ("atlas_id", "checkpoint_id", "checkpoint_type", "mode", "trigger_data"),
    TraceType.RESPONSE: ("atlas_id", "checkpoint_id", "answers", "validation_result", "faults?", "action_id?"),
    TraceType.PASSED: (
        "atlas_id",
        "checkpoint_id",
        "unlocked_capabilities",
        "injected_contexts",
        "locked_capabilities?",
        "more?",
    ),
    TraceType.BLOCKED: ("atlas_id", "checkpoint_id", "reason", "blocked_action?"),
    TraceType.SKIPPED: (
        "atlas_id",
        "checkpoint_id",
        "reason",
        "checkpoint_type?",
        "context_id?",
        "guidance?",
        "others?",
    ),
}
"""What each of them carries; with a question mark: not always."""


@dataclass(frozen=True, slots=True)
class Carries:
    """What an event tells, and which fields its data may have; a field with ``?`` is not always there."""

    meaning: str
    fields: tuple[str, ...]


_T = EventType
CARRIES: dict[EventType, Carries] = {
    _T.MESSAGE: Carries(
        "Somebody said something. Of the agent: what the model said in a step, in the place of its chunks.",
        ("role", "seq?", "step?", "text?", "truncated?", "model?", "stop_reason?"),
    ),
    _T.TEXT_CHUNK: Carries(
        "The model is saying this. Gone once the step is recorded: its `message` then has the whole text.",
        ("step", "epoch", "text"),
    ),
    _T.STEP_RESTARTED: Carries(
        "An attempt ended in the middle of its answer: drop the chunks of this step that came before.",
        ("step", "epoch"),
    ),
    _T.TOOL_CALL: Carries(
        "The model calls a tool. It is recorded; whether it was sent, its `tool_result` tells.",
        ("step", "id", "tool", "input_hash", "model?", "stop_reason?"),
    ),
    _T.TOOL_RESULT: Carries(
        "The call is settled: `completed`, `failed` or `rejected`. Its result stands in the step.",
        ("step", "id", "tool", "status", "error?"),
    ),
    _T.COMPLETION: Carries(
        "The job is done, and this is its answer.",
        ("step", "text?", "truncated?", "model?", "stop_reason?"),
    ),
    _T.STATUS: Carries(
        "The status of the job (or, without a job, of the session) changed, or will at its next boundary.",
        ("status?", "session?", "reason?", "error?", "hold?", "holds?", "note?", "pending_pause?", "pending_cancel?"),
    ),
    _T.ERROR: Carries("Why the job failed, or why it is tried again.", ("message", "retry?")),
    _T.SESSION_PAUSED: Carries(
        "Held: nothing goes on until somebody resumes it or answers.",
        ("reason?", "by?", "tools?", "calls?", "prompt?", "why?"),
    ),
    _T.SESSION_RESUMED: Carries("It goes on: a hold was lifted, or the last decision came.", ("by?", "approval_id?", "resumed_by_approval?")),
    _T.WORKER_LOST: Carries("The worker that ran the job died; another one takes it over.", ("worker", "epoch")),
    _T.CONTEXT_COMPACTED: Carries(
        "The window was full: its older turns were written down as a summary and facts, by the `model` or as an `extract`.",
        ("step", "message_seq", "turns", "by", "facts", "facts_dropped", "tokens_before", "tokens_after"),
    ),
    _T.BUDGET_SPENT: Carries(
        "The agent spent its budget of the day: the job sleeps until the next day of UTC.", ("message", "budget")
    ),
    _T.EFFECT_SETTLED: Carries(
        "A person said whether an uncertain call happened.", ("call", "tool", "verdict", "note?")
    ),
    _T.SIGNAL_RECEIVED: Carries(
        "A signal came that the job waits for. Its payload stands with what the job waits for.",
        ("signal_id", "name", "key", "entry"),
    ),
    _T.APPROVAL_REQUESTED: Carries(
        "A person is asked; the job waits. `joined`: an identical call was asked before, and one decision is for both.",
        ("approval_id", "call", "tool", "kind", "joined"),
    ),
    _T.APPROVAL_DECIDED: Carries(
        "Somebody who may said yes or no.",
        ("approval_id", "by", "decision", "version", "reason?"),
    ),
    _T.APPROVAL_EXPIRED: Carries("Nobody decided in time.", ("approval_id",)),
    _T.APPROVAL_CANCELLED: Carries("Its job or session ended before anybody decided.", ("approval_id",)),
    _T.APPROVAL_REMINDED: Carries("Nobody has decided yet, and the deadline comes nearer.", ("approval_id",)),
    _T.APPROVAL_VOTED: Carries(
        "Somebody who may said yes, and more votes are needed.", ("approval_id", "by", "decision", "version", "reason?")
    ),
    _T.APPROVAL_DELEGATED: Carries("Somebody handed their part to somebody else.", ("approval_id", "by", "to")),
    _T.APPROVAL_ESCALATED: Carries("More people may decide; the deadline stays.", ("approval_id", "level")),
    _T.CHECKPOINT_TRIGGERED: Carries(
        "A [gate](../guides/gates.md) fired: it asks, advises or only looks on, as its `mode` says.",
        FIELDS[TraceType.TRIGGERED],
    ),
    _T.CHECKPOINT_RESPONSE: Carries(
        "The agent answered a gate: `valid`, `invalid` or `accepted_with_faults`.",
        FIELDS[TraceType.RESPONSE],
    ),
    _T.CHECKPOINT_PASSED: Carries(
        "A gate is behind the agent, and what it gives holds from now on.",
        FIELDS[TraceType.PASSED],
    ),
    _T.CHECKPOINT_BLOCKED: Carries(
        "A gate stopped the agent, or the call of an action, and says why.",
        FIELDS[TraceType.BLOCKED],
    ),
    _T.CHECKPOINT_SKIPPED: Carries(
        "Left out for the budget that `reason` names: a gate that asks nothing, a context or a guidance.",
        FIELDS[TraceType.SKIPPED],
    ),
}  # fmt: skip

INBOX = frozenset({*(kind for kind in EventType if kind.startswith("approval_")), EventType.EFFECT_SETTLED})
"""What changes the list of those who wait for a person."""

GATES = frozenset(kind for kind in EventType if kind.startswith("checkpoint_"))
"""What gates did, by the names that the session's chain has for it."""


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
