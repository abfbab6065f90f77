"""Why an agent's function cannot go on: collected from all its branches, and written once when none of them runs any more."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.approvals.verbs.approval_requests import Possible
from cortex_plane.jobs.model.jobs import Hold
from cortex_plane.jobs.rules.attempts import StepWrite
from cortex_plane.worker.calls import Call


@dataclass(frozen=True, slots=True)
class Failure:
    message: str
    remedy: str
    write: StepWrite | None
    keep_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class Held:
    hold: Hold
    event: dict[str, Any]
    write: StepWrite | None


@dataclass(slots=True)
class StopReasons:
    error: BaseException | None = None
    """The attempt is over, and nothing can be written; or something broke that is not the agent's."""
    failures: list[Failure] = field(default_factory=list)
    holds: list[Held] = field(default_factory=list)
    handed_back: str | None = None
    hand_back_counts: bool = False
    """The worker does not stop: something changed meanwhile."""
    cancelled: bool = False
    awaiting: list[Call] = field(default_factory=list)
    terms: dict[UUID, Possible] = field(default_factory=dict)
    wakes: list[datetime] = field(default_factory=list)
    waits: list[dict[str, str]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """What it sleeps for."""
    held_back: bool = False
    """An operation did not begin, because somebody holds the job."""

    @property
    def now(self) -> bool:
        """Nothing may begin any more, in any branch."""
        return bool(self.error or self.failures or self.handed_back or self.cancelled)

    @property
    def waiting(self) -> bool:
        return bool(self.awaiting or self.wakes or self.waits)

    def __bool__(self) -> bool:
        return self.now or self.waiting or bool(self.holds)
