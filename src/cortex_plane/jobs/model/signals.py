"""Signals: what the world outside tells a job that waits for it.

A signal has a name and a key: *what* happened, and *to which one*: `payment.received`, `order-4711`. The first payload
for a name and a key wins and is kept, so it does not matter whether the signal or the wait comes first, and nobody who
waits is told anything else than the others.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated, Any
from uuid import UUID

from pydantic import AfterValidator, StringConstraints, ValidationError
from pydantic.dataclasses import dataclass as draft
from pydantic_core import PydanticCustomError

from cortex_plane.kernel.canonical import check_json
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.kernel.fields import DRAFT, Text

MAX_PAYLOAD_BYTES = 64 * 1024
MAX_WAITS = 1000
"""How many signals one job may wait for at once."""
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
Entry = Annotated[Text, StringConstraints(max_length=1000)]
"""Names a wait within its job."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class SignalDraft:
    """What somebody sends."""

    name: SignalName
    key: SignalKey
    payload: Payload = None


@draft(config=DRAFT, frozen=True, kw_only=True)
class WaitDraft:
    """What a job writes down when it goes to sleep: under which name of its own it waits, and for which signal."""

    entry: Entry
    name: SignalName
    key: SignalKey

    @classmethod
    def of(cls, entry: str, name: str, key: str) -> WaitDraft:
        """Checked by the same rules as what is sent, so that what is waited for can come."""
        try:
            return cls(entry=entry, name=name, key=key)
        except ValidationError as error:
            wrong = error.errors()[0]
            field = str(wrong["loc"][0])
            raise InvalidInput(
                f"A job cannot wait for this signal: its {field} {wrong['msg']}.",
                field=field,
                hint="A name has 1 to 200 characters, a key 1 to 255.",
            ) from None

    def as_row(self) -> dict[str, str]:
        return {"entry": self.entry, "name": self.name, "key": self.key}


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
