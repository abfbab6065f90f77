"""Effects: what a call of a tool did to the world outside, and what to do when nobody knows.

A call with side effects is written before it is sent (the intent) and after it answered (the outcome). An intent
without an outcome is uncertain: the worker may have died before sending, while the call was under way, or before it
could write the answer down. It is never simply sent again: the tool says how it is settled.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from pydantic.dataclasses import dataclass as draft

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.fields import DRAFT, JsonValue, Note


class CallStatus(StrEnum):
    """Where a call of a tool stands."""

    AWAITING = "awaiting"
    """Written, not sent: a person must approve it first."""
    ALLOWED = "allowed"
    """The policies allow it, and whoever runs it elsewhere has not begun."""
    APPROVED = "approved"
    """A person said yes. It is sent with the grant that this gave it, once."""
    INTENDED = "intended"
    """Authorised and written; may have been sent."""
    UNCERTAIN = "uncertain"
    """Nobody knows whether it happened; a person is asked."""
    CLEARED = "cleared"
    """A person said that it did not happen: it may be sent once more."""
    PARKED = "parked"
    """It began elsewhere and ended without acting, because what it called waits. It may begin again as it was allowed or approved."""
    COMPLETED = "completed"
    FAILED = "failed"
    REJECTED = "rejected"
    """Never sent: unknown tool, wrong arguments, or not allowed."""
    ANSWERED = "answered"
    """Never sent: a person answered in its place, and their answer is its result."""


STEP = "plane.step"
"""The tool name of a step of a code agent that is settled like a call; its arguments are the `step` and its `arguments`."""
SETTLED = frozenset({CallStatus.COMPLETED, CallStatus.FAILED, CallStatus.REJECTED, CallStatus.ANSWERED})
IN_DOUBT = frozenset({CallStatus.INTENDED, CallStatus.UNCERTAIN})
"""May have been sent, without an outcome. One that was cleared was not."""


MAX_REPEATS = 3
"""How often a call may be sent again because somebody answered that it did not happen."""
REPEATS_OF_A_GRANT = 1
"""How many of these one approval covers: whoever approved a call once did not approve it twice."""
PARKS_OF_A_GRANT = 10
"""How often a call may be parked and begin again under one approval."""


class Settlement(StrEnum):
    """What to do with an intent that has no outcome."""

    WAIT = "wait"
    """It may still be under way somewhere: look again when it cannot be any more."""
    SEND_AGAIN = "send_again"
    """With the same idempotency key, so that whoever received it twice acts once."""
    PROBE = "probe"
    ASK_HUMAN = "ask_human"
    FAIL = "fail"


_SETTLED_BY = {
    OnUncertain.RETRY_WITH_KEY: Settlement.SEND_AGAIN,
    OnUncertain.PROBE: Settlement.PROBE,
    OnUncertain.ASK_HUMAN: Settlement.ASK_HUMAN,
    OnUncertain.FAIL: Settlement.FAIL,
}


MAX_SENDS = 3
"""After so many uncertain ends of one call a person is asked, whatever was declared."""


def settlement(on_uncertain: OnUncertain, settle_after: datetime, now: datetime, attempt: int = 1) -> Settlement:
    """Until ``settle_after`` the call may be sent, or be under way, in a worker that only seemed dead."""
    if now < settle_after:
        return Settlement.WAIT
    choice = _SETTLED_BY[on_uncertain]
    if attempt >= MAX_SENDS and choice in (Settlement.SEND_AGAIN, Settlement.PROBE):
        return Settlement.ASK_HUMAN
    return choice


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolCall:
    """One call of a tool, as it is kept."""

    id: UUID
    job_id: UUID
    step_index: int
    position: int
    tool_name: str
    tool_digest: str | None
    arguments: Any
    read_only: bool
    on_uncertain: OnUncertain | None
    input_hash: str = ""
    edited: bool = False
    """A person changed the arguments before they approved it."""
    grant_expires_at: datetime | None = None
    granted: bool = False
    """A person approved it, and it was sent with that."""
    repeats: int = 0
    """Of one that may be sent again: how often somebody answered that it did not happen."""
    status: CallStatus
    attempt: int
    dispatch_before: datetime | None
    settle_after: datetime | None
    result: Any
    result_id: UUID | None
    """Where a result that is too large for the row is kept."""
    error: str | None
    settled_by: str | None
    created_at: datetime
    finished_at: datetime | None


class Verdict(StrEnum):
    """What a person knows about an uncertain call."""

    HAPPENED = "happened"
    DID_NOT_HAPPEN = "did_not_happen"
    FAIL = "fail"
    """Give the job up."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class Answer:
    """A person's answer about an uncertain call. ``result`` is what the agent is told that the call returned."""

    verdict: Verdict
    result: JsonValue = None
    note: Note | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Question:
    """An uncertain call, as it is put to a person."""

    call_id: UUID
    job_id: UUID
    step_index: int
    tool_name: str
    arguments: Any
    attempt: int
    error: str | None
    """What went wrong, where the call itself told; null where its worker stopped."""
    text: str
    """What is asked."""
    created_at: datetime
    """When the call was written down, just before it was sent."""


def repeats_used_up() -> Conflict:
    return Conflict(
        f"Somebody answered {MAX_REPEATS} times that this call did not happen, and it was sent again each time.",
        code="repeats_used_up",
        hint="Answer `happened` or `fail`; to try once more, submit the job again with `cortex job resubmit`.",
    )


def doubt(tool_name: str, error: str | None) -> str:
    what = "went wrong" if error else "was under way when its worker stopped"
    return (
        f"`{tool_name}` {what}, so the plane cannot tell whether it happened."
        " Look at the outside world, then answer: happened, did_not_happen or fail."
    )


def call_label(tool_name: str, arguments: Any) -> str:
    """What people read of a call: the name of its tool, or of its step."""
    return str(arguments["step"]) if tool_name == STEP else tool_name


def question(call: ToolCall) -> Question:
    return Question(
        call_id=call.id,
        job_id=call.job_id,
        step_index=call.step_index,
        tool_name=call.tool_name,
        arguments=call.arguments,
        attempt=call.attempt,
        error=call.error,
        text=doubt(call_label(call.tool_name, call.arguments), call.error),
        created_at=call.created_at,
    )
