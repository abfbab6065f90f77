"""The events of a session, in order.

`EventType` is the whole vocabulary; docs/reference/events.md is generated from it. An event is sent after its transaction
has committed. The one exception is a text chunk: it shows what a model is writing, and is deleted once its step is recorded.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field


class EventType(StrEnum):
    """A kind of event: its meaning, and the fields of its data with spaces between. A field with ``?`` is optional."""

    meaning: str
    fields: tuple[str, ...]

    def __new__(cls, name: str, meaning: str = "", fields: str = "") -> EventType:
        kind = str.__new__(cls, name)
        kind._value_ = name
        kind.meaning, kind.fields = meaning, tuple(fields.split())
        return kind

    MESSAGE = (
        "message",
        "A message was added to the session. A message of the agent has the text of one step and replaces its chunks.",
        "role seq? step? text? truncated? model? stop_reason?",
    )
    TEXT_CHUNK = (
        "text_chunk",
        (
            "A piece of the answer that the model is writing. Chunks are deleted when the step is recorded; its `message` has"
            " the whole text."
        ),
        "step epoch text",
    )
    STEP_RESTARTED = (
        "step_restarted",
        "An attempt ended in the middle of its answer. Drop the earlier chunks of this step.",
        "step epoch",
    )
    TOOL_CALL = (
        "tool_call",
        (
            "The model calls a tool. The call is recorded; its `tool_result` tells whether it was sent. `input` is redacted; of one"
            " that has more than 8000 characters it is the beginning, as a text, and `truncated` is true."
        ),
        "step id tool input_hash position? input? truncated? model? stop_reason?",
    )
    TOOL_RESULT = (
        "tool_result",
        "The call is settled: `completed`, `failed`, `rejected` or `answered`. The step has its result.",
        "step id tool status error?",
    )
    COMPLETION = (
        "completion",
        "The job is completed. The event has its answer.",
        "step text? truncated? model? stop_reason?",
    )
    STATUS = (
        "status",
        "The status of the job changed, or will change at its next boundary. Without a job: the status of the session.",
        "status? session? reason? error? open_approvals? hold? holds? note? pending_pause? pending_cancel?",
    )
    ERROR = "error", "Why the job failed, or why it is retried.", "message retry?"
    PAUSE_PENDING = (
        "pause_pending",
        (
            "Somebody paused what is running: it stops at its next boundary, by `hold_by` at the latest."
            " `session_paused` follows once it holds."
        ),
        "pause_source by? reason? correlation_id? checkpoint_key? hold_by",
    )
    SESSION_PAUSED = (
        "session_paused",
        (
            "Nothing runs any more, until somebody resumes it or answers. `pause_source` is `operator`, `owner`, `approval`,"
            " `policy` or `idle`; `correlation_id` is that of the pause, or the approval; `checkpoint_key` is the id of the"
            " checkpoint that it goes on from."
        ),
        "pause_source? reason? by? correlation_id? checkpoint_key? paused_at? tools? calls? call? tool? prompt? why?",
    )
    SESSION_RESUMED = (
        "session_resumed",
        "It continues with step `resumed_at_loop`: a hold was lifted, or the last decision was made.",
        "by? approval_id? resumed_by_approval? resumed_at_loop? resumed_at?",
    )
    WORKER_LOST = "worker_lost", "The worker of the job died. Another worker takes the job over.", "worker epoch"
    CONTEXT_COMPACTED = (
        "context_compacted",
        "The window was full. Its older turns were replaced by a summary and facts, written by the `model` or as an `extract`.",
        "step message_seq turns by facts facts_dropped tokens_before tokens_after",
    )
    BUDGET_SPENT = (
        "budget_spent",
        "The agent spent its daily budget. The job sleeps until the next day (UTC).",
        "message budget",
    )
    EFFECT_SETTLED = (
        "effect_settled",
        "A person answered whether an uncertain call happened.",
        "call tool verdict note?",
    )
    SIGNAL_RECEIVED = (
        "signal_received",
        "The job received a signal that it waits for. The journal entry has the payload.",
        "signal_id name key entry",
    )
    APPROVAL_REQUESTED = (
        "approval_requested",
        "A person must decide, and the job waits. `joined`: the call is identical to an earlier one, and one decision counts for both.",
        "approval_id call tool kind joined",
    )
    APPROVAL_DECIDED = (
        "approval_decided",
        "An approver approved or denied the request, or responded to it.",
        "approval_id by decision version reason?",
    )
    APPROVAL_EXPIRED = "approval_expired", "The deadline passed without a decision.", "approval_id"
    APPROVAL_CANCELLED = "approval_cancelled", "The job or session ended before a decision.", "approval_id"
    APPROVAL_REMINDED = "approval_reminded", "The deadline is near and there is no decision yet.", "approval_id"
    APPROVAL_VOTED = (
        "approval_voted",
        "An approver approved, and more votes are needed.",
        "approval_id by decision version reason?",
    )
    APPROVAL_DELEGATED = "approval_delegated", "An approver handed their part to another person.", "approval_id by to"
    APPROVAL_ESCALATED = "approval_escalated", "More people may decide. The deadline stays.", "approval_id level"
    CHECKPOINT_TRIGGERED = (
        "checkpoint_triggered",
        "A [gate](../guides/gates.md) fired. Its `mode` says whether it asks, advises or only observes.",
        "atlas_id checkpoint_id checkpoint_type mode trigger_data",
    )
    CHECKPOINT_RESPONSE = (
        "checkpoint_response",
        "The agent answered a gate: `valid`, `invalid` or `accepted_with_faults`.",
        "atlas_id checkpoint_id answers validation_result cut? more_answers? faults? action_id?",
    )
    CHECKPOINT_PASSED = (
        "checkpoint_passed",
        "The agent passed a gate. Its effects apply from now on.",
        "atlas_id checkpoint_id unlocked_capabilities injected_contexts locked_capabilities? more?",
    )
    CHECKPOINT_BLOCKED = (
        "checkpoint_blocked",
        "A gate stopped the agent or the call of an action. `reason` says why.",
        "atlas_id checkpoint_id reason blocked_action?",
    )
    CHECKPOINT_SKIPPED = (
        "checkpoint_skipped",
        "A gate without questions, a context or a guidance was left out because of the budget that `reason` names.",
        "atlas_id checkpoint_id reason checkpoint_type? context_id? guidance? others?",
    )


class TraceType(StrEnum):
    """What gates did, as the session's chain names it."""

    TRIGGERED = "checkpoint_triggered"
    RESPONSE = "checkpoint_response"
    PASSED = "checkpoint_passed"
    BLOCKED = "checkpoint_blocked"
    SKIPPED = "checkpoint_skipped"
    """Left out because of a budget."""


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
    """The fields of the event, by its type."""
    created_at: datetime
