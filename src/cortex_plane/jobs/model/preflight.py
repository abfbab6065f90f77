"""Preflight: parked jobs, and why the code that is loaded here could not resume them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from cortex_plane.jobs.model.effects import ToolCall
from cortex_plane.jobs.model.jobs import Hold, JobKind, JobStatus

PARKED = (
    JobStatus.PENDING, JobStatus.RUNNING, JobStatus.RETRY, JobStatus.WAITING_FOR_APPROVAL, JobStatus.SLEEPING,
    JobStatus.PAUSED,
)  # fmt: skip
"""Begun, not finished, and nobody runs it: whoever takes it up next must be able to."""


class Severity(StrEnum):
    ERROR = "error"
    """It cannot be resumed here as it is."""
    WARNING = "warning"
    """It goes on, but not quite as it was left."""


class Outcome(StrEnum):
    """What becomes of the job where only this code runs."""

    WAITS = "waits"
    """Nobody takes it, visibly, until somebody has the code."""
    HELD = "held"
    """It is taken and put on hold: whoever resumes it decides."""
    FAILS = "fails"
    RETRIES = "retries"
    """It is tried again and again until its retries are used up."""
    ASKED_AGAIN = "asked_again"
    GOES_ON = "goes_on"


class Reason(StrEnum):
    APP_MISSING = "app_missing"
    RUN_MISSING = "run_missing"
    """Its code agent is not among those of its app."""
    TOOL_MISSING = "tool_missing"
    ARGUMENTS_REFUSED = "arguments_refused"
    """The tool is there, and does not take any more what it was called with."""
    TOOL_CHANGED = "tool_changed"
    CHECKPOINT_NEWER = "checkpoint_newer"
    CHECKPOINT_CORRUPT = "checkpoint_corrupt"
    PROMPT_CHANGED = "prompt_changed"
    MODEL_MISSING = "model_missing"
    REPLAY_MISMATCH = "replay_mismatch"
    AGENT_UNREADABLE = "agent_unreadable"


@dataclass(frozen=True, kw_only=True, slots=True)
class Parked:
    """A job that was begun and that nobody runs, with what a resume would look at first."""

    id: UUID
    session_id: UUID
    agent_id: UUID
    agent: str
    agent_version: int
    kind: JobKind
    app: str
    status: JobStatus
    holds: list[Hold]
    payload: dict[str, Any]
    checkpoint: str | None
    checkpoint_mac: bytes | None
    model_config: dict[str, Any]
    skill_config: dict[str, Any]
    resource_limits: dict[str, Any]
    response: dict[str, Any] | None
    """The last one of its model."""
    calls: list[ToolCall]
    """Those of that response; of a code agent, those without an outcome."""
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """One reason why one job is not resumed as it was left."""

    org: str
    job_id: UUID
    agent: str
    app: str
    status: JobStatus
    severity: Severity
    reason: Reason
    outcome: Outcome
    message: str
    hint: str
