"""Time as a worker needs it: it never jumps, and it goes on while the process or its machine stands still."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

# The monotonic clock stops while a machine is suspended; a lease does not.
_BOOT = getattr(time, "CLOCK_BOOTTIME", None)


def ticks() -> float:
    return time.clock_gettime(_BOOT) if _BOOT is not None else time.monotonic()


@dataclass(slots=True)
class DatabaseTime:
    """The database's time, carried forward by this machine's ticks. Never ahead of it: it counts from the answer."""

    at: datetime
    answered: float

    def now(self) -> datetime:
        return self.at + timedelta(seconds=ticks() - self.answered)

    def heard(self, at: datetime, answered: float) -> None:
        self.at, self.answered = at, answered
