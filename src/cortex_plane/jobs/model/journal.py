"""The journal of a code agent, and the signals that it waits for."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, StringConstraints
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.canonical import check_json, check_text
from cortex_plane.kernel.errors import Conflict, ContextMisused, InvalidInput
from cortex_plane.kernel.fields import DRAFT, Text

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
class JournalEntry:
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


def check_name(name: object, what: str) -> str:
    """A name that can be part of a key."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_NAME or _UNNAMEABLE.search(name):
        excerpt = name[:50] if isinstance(name, str) else name
        raise ContextMisused(
            f"{excerpt!r} cannot be the name of {what}.",
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


MAX_PAYLOAD_BYTES = 64 * 1024
AT_ONCE = 1000
"""How many jobs one transaction wakes; whoever else waits is woken by the next."""
KEPT = timedelta(days=30)
"""How long a signal is kept once no open job has heard it."""


def _small(value: Any) -> Any:
    try:
        check_json(value, "payload", MAX_PAYLOAD_BYTES)
    except InvalidInput as error:
        raise PydanticCustomError("unstorable_json", "{reason}", {"reason": error.message}) from None
    return value


Payload = Annotated[Any, AfterValidator(_small)]
"""Any JSON, up to 64 KB."""
SignalName = Annotated[Text, StringConstraints(max_length=200)]
SignalKey = Annotated[Text, StringConstraints(max_length=255)]
"""Compared exactly: nothing is trimmed or folded."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class SignalDraft:
    """What somebody sends."""

    name: SignalName
    key: SignalKey
    payload: Payload = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Signal:
    id: UUID
    name: str
    key: str
    payload: Any
    sent_by: str
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class SignalReceipt:
    """What sending did. Sending the same again gives the same signal, with ``changed`` false."""

    signal: Signal
    changed: bool
    woken: int
    """How many jobs waited for it and were told by this request."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Wait:
    """What a job waits for, or waited for."""

    entry: str
    """Its name within the job."""
    name: str
    key: str
    created_at: datetime
    signal_id: UUID | None
    """None while nothing came, and where the signal itself is forgotten already."""
    payload: Any
    arrived_at: datetime | None
    """None while nothing came. What came late, but before the job went on, came in time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waiter:
    """A job that a signal reaches."""

    job_id: UUID
    session_id: UUID
    entry: str


def taken(name: str, key: str) -> Conflict:
    return Conflict(
        f"Another payload was sent as `{name}` with the key `{key}` before.",
        code="signal_taken",
        hint="The first one stays: send yours under another key, and let the job wait for that one.",
    )
