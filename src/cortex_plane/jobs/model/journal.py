"""The journal of a code agent's job: one entry for each operation of its code, in the order in which they were begun.

An entry's key says where in the code it stands: the branch, the name, and how often the name came before it there:
`plan#0`, `gather#0/1/check#2`. When the job goes on, its code begins again from the top; each operation that has an entry
gets what was recorded, and nothing runs twice.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.kernel.canonical import check_text
from cortex_plane.kernel.errors import CortexError, InvalidInput

MAX_NAME = 200
MAX_KEY = 1000
MAX_ENTRIES = 10_000
"""Of one job: all of them are read whenever it goes on."""
_UNNAMEABLE = re.compile(r"[/#\x00-\x1f\x7f]")


class EntryKind(StrEnum):
    STEP = "step"
    TOOL = "tool"
    MODEL = "model"
    APPROVAL = "approval"
    SLEEP = "sleep"
    WAIT = "wait"
    VALUE = "value"
    GATHER = "gather"


class EntryStatus(StrEnum):
    OPEN = "open"
    """Begun, and not over: it waits for a person, a time or a signal, or its outcome is not known yet."""
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    key: str
    position: int
    """The place among all operations of the job; a tool call's step has the same number."""
    kind: EntryKind
    name: str
    input_hash: str
    status: EntryStatus
    result: Any = None
    result_id: UUID | None = None
    """Where a result that is too large for the row is kept."""
    error: dict[str, Any] | None = None
    """`type` and `message` of what was raised."""
    created_at: datetime
    finished_at: datetime | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Arrived:
    """What a job heard of the signals that it waits for, by the key of the entry that waits."""

    entry: str
    payload: Any


class StepFailed(CortexError):
    """The function of a step raised. The message says what."""

    code = "step_failed"
    http_status = 424
    default_hint = "Catch StepFailed to go another way; otherwise the job is tried again."


class ToolFailed(CortexError):
    """A tool that a code agent called failed, or could not be called so."""

    code = "tool_failed"
    http_status = 424
    default_hint = "Catch ToolFailed to go another way; otherwise the job fails."


class ToolDenied(CortexError):
    """A policy or a person said no to a call."""

    code = "tool_denied"
    http_status = 403
    default_hint = "Do not send the same call again: go another way."


class GateClosed(ToolDenied):
    """A gate asks before it lets a call through. Answer it, and the same call again goes on."""

    code = "gate_closed"
    http_status = 409
    default_hint = "Answer its questions, then make the same call again."

    @property
    def gate(self) -> str:
        """The id of the first gate that asks."""
        return self.questions[0]["gate"] if self.questions else ""

    @property
    def questions(self) -> list[dict[str, Any]]:
        """Each gate that asks, as `gate_prompts.asked_of` shows it."""
        return list(self.details.get("questions") or ())


class WaitTimeout(CortexError):
    """Nobody sent the signal in time."""

    code = "wait_timeout"
    http_status = 424
    default_hint = "Catch WaitTimeout to go on without it; otherwise the job fails."


class ContextMisused(CortexError):
    """The context of a code agent was used in a way that cannot be recorded."""

    code = "context_misused"
    http_status = 422
    default_hint = "Correct the agent's code, then `cortex job resubmit` it."


def check_name(name: object, what: str) -> str:
    """A name that can be part of a key."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or _UNNAMEABLE.search(name):
        shown = name[:50] if isinstance(name, str) else name
        raise ContextMisused(
            f"{shown!r} cannot be the name of {what}.",
            hint=f"Use a text of 1 to {MAX_NAME} characters without `/`, `#` and control characters.",
        )
    try:
        return check_text(name, "name")
    except InvalidInput as error:
        raise ContextMisused(f"The name of {what} cannot be stored: {error.message}") from None


def scope_of(key: str) -> str:
    """The branch that an entry belongs to: everything up to the last slash."""
    return key[: key.rfind("/") + 1]


def digest(value: bytes) -> str:
    return hashlib.sha256(value).hexdigest()
