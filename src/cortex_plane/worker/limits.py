"""Time and limits of an attempt: clocks that never jump, the limits of an agent version, and calls that must end in time."""

from __future__ import annotations

import asyncio
import functools
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeVar

from cortex_plane.agents.model.agents import ResourceLimits, SkillSettings
from cortex_plane.jobs.rules import Assignment
from cortex_plane.kernel.errors import Backoff
from cortex_plane.kernel.fields import parse

T = TypeVar("T")
Refusal = tuple[str, str]
"""Which limit is reached, and what to do about it."""


def steady_clock(platform: str) -> int | None:
    """The clock that goes on while a machine is suspended, as a lease does. Python's own monotonic clock stops then, also on macOS."""
    name = "CLOCK_MONOTONIC" if platform == "darwin" else "CLOCK_BOOTTIME"
    number: int | None = getattr(time, name, None)
    return number


_STEADY = steady_clock(sys.platform)
ticks: Callable[[], float] = time.monotonic if _STEADY is None else functools.partial(time.clock_gettime, _STEADY)


@dataclass(slots=True)
class DatabaseTime:
    """The database's time, carried forward by this machine's ticks. Never ahead of it: it counts from the answer."""

    at: datetime
    tick: float

    def now(self) -> datetime:
        return self.at + timedelta(seconds=ticks() - self.tick)


@dataclass(frozen=True, slots=True)
class AttemptLimits:
    """The limits of an agent version, and how much of its time a job has used."""

    resources: ResourceLimits
    skills: SkillSettings
    start: float
    """Tick at which the attempt began."""
    earlier_seconds: float
    """For how long earlier attempts of the job ran."""

    @classmethod
    def of(cls, assignment: Assignment, start: float) -> AttemptLimits:
        skills = SkillSettings.of(assignment.skill_config)
        return cls(parse(ResourceLimits, assignment.resource_limits), skills, start, assignment.running_seconds)

    @property
    def backoff(self) -> Backoff:
        return Backoff(base_seconds=self.resources.retry_base_seconds, cap_seconds=self.resources.retry_cap_seconds)

    def job_seconds_left(self) -> float:
        return self.resources.timeout_seconds - self.earlier_seconds - (ticks() - self.start)

    def refuse_request(self, requests: int, tokens: int) -> Refusal | None:
        """Why the model must not be asked once more, after so many requests and tokens."""
        limits = self.resources
        if requests >= limits.max_iterations:
            return (
                f"The model was asked {requests} times, which is the limit of its agent.",
                "It may be going in circles: look at its steps, or raise `max_iterations`.",
            )
        if limits.token_budget is not None and tokens >= limits.token_budget:
            return (
                f"The job used {tokens} tokens; its budget is {limits.token_budget}.",
                "Raise `token_budget` in the agent's resource limits.",
            )
        return self.refuse_time()

    def refuse_time(self) -> Refusal | None:
        return self.out_of_time if self.job_seconds_left() <= 0 else None

    @property
    def out_of_time(self) -> Refusal:
        return (
            f"The job ran longer than {self.resources.timeout_seconds} s.",
            "Raise `timeout_seconds` in the agent's resource limits.",
        )


class CallTimeout(Exception):
    """The time of a call is over, for the reason that it may have. A tool may raise TimeoutError itself; then the call is over too."""


class CallTooLate(Exception):
    """The call was not begun: its time to begin was over."""


class CallStopped(Exception):
    """A tool raised what would stop its caller."""


async def within(seconds: float, call: Coroutine[Any, Any, T], limits: set[asyncio.Timeout]) -> T:
    """Whatever a tool raises ends its call, never the job or the worker around it. Meanwhile its time limit is in ``limits``."""
    task = asyncio.current_task()
    try:
        async with asyncio.timeout(seconds) as limit:
            limits.add(limit)
            try:
                return await call
            finally:
                limits.discard(limit)
    except TimeoutError as error:
        if limit.expired():
            raise CallTimeout from error
        raise
    except asyncio.CancelledError as error:
        if task is not None and task.cancelling():
            raise
        raise CallStopped("CancelledError") from error
    except SystemExit as error:
        raise CallStopped(f"SystemExit: {error.code}") from error
