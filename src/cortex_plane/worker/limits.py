"""Time and limits of an attempt: clocks that never jump, and what an agent version allows its jobs."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from cortex_plane.agents.model.agents import (
    CheckpointGranularity,
    PromptChange,
    ResourceLimits,
    SkillSettings,
)
from cortex_plane.jobs.rules.attempts import Assignment
from cortex_plane.kernel.errors import Backoff
from cortex_plane.kernel.fields import parse

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


@dataclass(frozen=True, slots=True)
class Limits:
    resources: ResourceLimits
    skills: SkillSettings

    @classmethod
    def of(cls, given: Assignment) -> Limits:
        return cls(parse(ResourceLimits, given.resource_limits), SkillSettings.of(given.skill_config))

    @property
    def backoff(self) -> Backoff:
        return Backoff(
            base_seconds=self.resources.retry_base_seconds, cap_seconds=self.resources.retry_cap_seconds
        )

    @property
    def per_call(self) -> bool:
        return self.skills.checkpoint_granularity is CheckpointGranularity.PER_TOOL_CALL

    @property
    def on_prompt_change(self) -> PromptChange:
        return self.skills.on_prompt_change
