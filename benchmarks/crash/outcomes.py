"""The places where a worker dies, and what became of its job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

STEPS = 3
FATAL_STEP = 2


class Place(StrEnum):
    """Where in step 2 the worker is killed with SIGKILL."""

    BEFORE = "before"
    """Before the effect is sent."""
    INSIDE = "inside"
    """After the world has acted, before its answer came back."""
    AFTER = "after"
    """After the answer, before the engine has recorded it."""


@dataclass(frozen=True)
class Outcome:
    """How often each step's act happened, and what kept the job from finishing, if anything did."""

    acts: tuple[int, ...]
    trouble: str | None = None
    seconds: float = 0.0
    """From the start of the recovery until the job was complete."""

    def __str__(self) -> str:
        if self.trouble is not None:
            return self.trouble
        if min(self.acts) == 0:
            return "lost"
        most = max(self.acts)
        return "once" if most == 1 else f"repeated ×{most}"


def act_key(job: str, step: int) -> str:
    """The logical act: the world sees the same key however often a step is tried."""
    return f"{job}/{step}"
