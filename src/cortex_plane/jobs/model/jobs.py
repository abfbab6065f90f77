"""Jobs: their states, drafts, and what a deploy finds parked; and the workers that run them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any
from uuid import UUID

from pydantic import Field
from pydantic.dataclasses import dataclass as draft

from cortex_plane.jobs.model.effects import ToolCall
from cortex_plane.kernel.fields import DRAFT, AtlasIds, JsonObject, JsonValue, Note, Ref
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.model.versions import RequestPolicies
from cortex_plane.sessions.model.sessions import RuntimeStatus, Session


class JobStatus(StrEnum):
    """Where a job stands."""

    PENDING = "PENDING"
    RUNNING = "RUNNING"
    RETRY = "RETRY"
    WAITING_FOR_APPROVAL = "WAITING_FOR_APPROVAL"
    SLEEPING = "SLEEPING"
    PAUSED = "PAUSED"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


_S = JobStatus
TRANSITIONS: dict[JobStatus, dict[JobStatus, str]] = {
    _S.PENDING: {_S.RUNNING: "claimed", _S.FAILED: "cannot start", _S.CANCELLED: "cancelled"},
    _S.RUNNING: {
        _S.COMPLETED: "done",
        _S.FAILED: "permanent failure",
        _S.RETRY: "transient failure",
        _S.WAITING_FOR_APPROVAL: "asks a human",
        _S.SLEEPING: "until a time, an event or a child job",
        _S.PAUSED: "held, at a boundary",
        _S.CANCELLED: "cancelled",
    },
    _S.RETRY: {_S.RUNNING: "after next_retry_at", _S.FAILED: "out of retries", _S.CANCELLED: "cancelled"},
    _S.WAITING_FOR_APPROVAL: {
        _S.RUNNING: "all decided",
        _S.PAUSED: "all decided while held",
        _S.FAILED: "denied or expired",
        _S.CANCELLED: "cancelled",
    },
    _S.SLEEPING: {_S.RUNNING: "woken", _S.PAUSED: "woken while held", _S.FAILED: "failed", _S.CANCELLED: "cancelled"},
    _S.PAUSED: {_S.RUNNING: "resumed", _S.FAILED: "failed", _S.CANCELLED: "cancelled"},
    _S.COMPLETED: {},
    _S.FAILED: {},
    _S.CANCELLED: {},
}
INITIAL = JobStatus.PENDING
TERMINAL = frozenset(status for status, targets in TRANSITIONS.items() if not targets)
OPEN = frozenset(JobStatus) - TERMINAL
RESUBMITTABLE = frozenset({JobStatus.FAILED, JobStatus.CANCELLED})


class JobKind(StrEnum):
    """What a job works on."""

    CONVERSATION = "conversation"
    """Answers the messages of its session; at most one is open per session."""
    TASK = "task"
    """Submitted by a program."""
    EXTERNAL = "external"
    """The whole of what an agent does that runs elsewhere. No worker ever leases it."""


class Hold(StrEnum):
    """Why a job is held. Several may stand at once; it goes on when the last one is lifted."""

    OPERATOR = "operator"
    OWNER = "owner"
    """Paused by the person or program that it works for."""
    SESSION = "session"
    """Its whole session was paused."""
    UNCERTAIN_EFFECT = "uncertain_effect"
    """Nobody knows whether a call happened: a person is asked."""
    CODE_CHANGED = "code_changed"
    """The code that a recorded call needs is not there any more."""
    PROMPT_CHANGED = "prompt_changed"
    """The agent's prompt differs from the one that the job began with."""
    GATES_UNREADABLE = "gates_unreadable"
    """The gates of its session cannot be read: nothing goes around them, and nothing that people decided is lost."""
    POLICIES_UNREADABLE = "policies_unreadable"
    """The policies of its org were not put in force by the plane: nothing is allowed until they are applied anew."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class JobDraft:
    """What a caller submits. Without a session the plane opens a programmatic one."""

    agent: Ref
    payload: JsonObject = Field(default_factory=dict)
    """What the job is to do, as JSON."""
    session_id: UUID | None = None
    """The session that it runs in; a new one, where it is left out."""
    max_retries: Annotated[int, Field(strict=True, ge=0, le=100)] = 3
    policies: RequestPolicies = Field(default_factory=list)
    """Rows that hold for this job alone. They only tighten."""
    atlases: AtlasIds = Field(default_factory=list)
    """Atlases that its session is bound to from now on, beside those of the agent."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class Cancellation:
    reason: Note | None = None


class PauseSource(StrEnum):
    """Who or what paused something."""

    OPERATOR = "operator"
    OWNER = "owner"
    """The person or program that it works for."""
    APPROVAL = "approval"
    """People must decide first."""
    POLICY = "policy"
    """The plane itself, because it cannot tell how to go on."""
    IDLE = "idle"
    """Nobody said anything for a while."""


HOLD_SECONDS = 120


@draft(config=DRAFT, frozen=True, kw_only=True)
class Pause:
    reason: Note | None = None
    correlation_id: Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")] | None = None
    """What the pause belongs to elsewhere, such as an incident. Its events carry it."""
    within_seconds: Annotated[int, Field(strict=True, ge=1, le=24 * 3600)] = HOLD_SECONDS
    """How long a job that runs may take to its next boundary. What is under way then is cut off: a request to a model is repeated
    on resume, the outcome of a tool call is uncertain."""


@draft(config=DRAFT, frozen=True, kw_only=True)
class Resumption:
    """A resume lifts what an operator may lift; an uncertain effect is lifted by its answer alone."""

    note: Note | None = None
    """For the audit trail."""
    operator_input: JsonValue = None
    """What the model reads before it goes on, as words of whoever resumes: a text or any JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    id: UUID
    session_id: UUID
    agent_id: UUID
    agent_version: int
    kind: JobKind
    app: str
    """The code that runs it; only workers that loaded it take the job."""
    status: JobStatus
    holds: list[Hold]
    """Why it is held; empty where it is not."""
    pending_pause: bool
    """Held, and still running to its next boundary."""
    pending_cancel: bool
    """Cancelled, and still running to its next boundary."""
    payload: dict[str, Any]
    """What it was submitted with, as JSON."""
    result: dict[str, Any] | None
    """Its result; null before its end."""
    step_index: int | None
    """The last completed step."""
    running_seconds: float
    """How long it has been running, in all attempts."""
    epoch: int
    """How often it was leased."""
    deaths: int
    """Workers that died with it since it last made progress."""
    wake_at: datetime | None
    """When it goes on by itself; null where no time is set."""
    retry_count: int
    """How often it was tried again after an error."""
    max_retries: int
    next_retry_at: datetime | None
    """When it is tried again."""
    open_approvals: int
    """How many requests for approval it waits for."""
    error_message: str | None
    """Why it failed."""
    resubmitted_from: UUID | None
    """The id of the job that it repeats."""
    caused_by: UUID | None
    """The person whose message or task it answers."""
    policies: list[PolicyRow] | None
    """What its request demands beyond what holds anyway."""
    created_at: datetime
    updated_at: datetime
    finished_at: datetime | None

    @property
    def runtime_status(self) -> RuntimeStatus:
        """What its agent does, as far as this job goes; the function of this name in the database says it of a session."""
        if self.status in (JobStatus.WAITING_FOR_APPROVAL, JobStatus.PAUSED) or (self.holds and not self.pending_pause):
            return RuntimeStatus.SUSPENDED
        if self.status is JobStatus.FAILED:
            return RuntimeStatus.ERROR
        return RuntimeStatus.TERMINATED if self.status is JobStatus.CANCELLED else RuntimeStatus.ACTIVE


@dataclass(frozen=True, kw_only=True, slots=True)
class JobChange:
    """One line of a job's history, written by the database itself."""

    previous_status: JobStatus | None
    """The status before; null for the first line."""
    new_status: JobStatus
    """The status after."""
    metadata: dict[str, Any]
    created_at: datetime


@dataclass(frozen=True, kw_only=True, slots=True)
class StepCall:
    id: UUID
    tool_name: str
    arguments: Any
    status: str
    """Where the call stands; the values are those of calls."""
    read_only: bool
    attempt: int
    result: Any
    result_id: UUID | None
    """The id of a result that is too large to be in the list."""
    error: str | None
    settled_by: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Step:
    """One response of the model with its calls."""

    step_index: int
    text: str | None
    """What the model said besides its calls."""
    model: str | None
    """Who answered; null for the scripted model that the agent itself names."""
    stop_reason: str | None
    """Null where the model said all that it wanted to; `max_tokens` where it was cut off."""
    prompt_tokens: int
    """Tokens that the model was sent."""
    completion_tokens: int
    started_at: datetime
    created_at: datetime
    """When it was recorded with its outcomes."""
    calls: list[StepCall]
    """The calls of the step, in their order."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SteeringResult:
    """What a request to steer a job found and did. Asking again gives the same, with ``changed`` false."""

    job: Job
    """The job as it is now."""
    changed: bool
    pending: bool
    """The job still runs to its next boundary; until then nothing is settled for good."""
    settled: list[UUID]
    """Calls of the current step whose outcome is known."""
    uncertain: list[UUID]
    """Calls of it that may have been sent and have no outcome yet."""
    status: RuntimeStatus | None = None
    """Of the agent: `SUSPENDED` once the job holds."""
    checkpoint_key: str | None = None
    """The id of the checkpoint that it goes on from. Null where it has none yet."""
    paused_at: datetime | None = None
    """Since when it holds. Null where nothing holds it, or not yet."""
    hold_by: datetime | None = None
    """When it will hold at the latest, while it is pending."""
    resumed_at_loop: int | None = None
    """The step with which it goes on, where this request let it go on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionReceipt:
    """What a request to hold or resume a session found and did."""

    session: Session
    changed: bool
    pending: bool
    """Some of its jobs still run to their next boundary."""
    jobs: list[Job]
    """Its open jobs."""
    settled: list[UUID] = field(default_factory=list)
    """Calls of the current steps whose outcome is known."""
    uncertain: list[UUID] = field(default_factory=list)
    """Calls of the current steps that may have been sent and have no outcome yet."""
    status: RuntimeStatus | None = None
    checkpoint_key: str | None = None
    """Of its open job; null where it has none, or several."""
    paused_at: datetime | None = None
    """Since when it holds; null where nothing holds it, or not yet."""
    hold_by: datetime | None = None
    """When it will hold at the latest, while it is pending."""
    resumed_at_loop: int | None = None
    """The step with which its open job goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Worker:
    id: UUID
    name: str
    host: str
    """The name of the machine."""
    pid: int
    """The number of its process."""
    apps: list[str]
    """The apps that it loaded."""
    concurrency: int
    """How many jobs it runs at the same time."""
    started_at: datetime
    expires_at: datetime
    """Until then it counts as alive; its heartbeat renews it."""
    stopped_at: datetime | None
    """When it stopped; null while it runs."""
    alive: bool
    """Whether its heartbeat is in time."""
    org_id: UUID | None
    """Of a remote worker, which has no database: the one org whose jobs it runs. Null for a worker beside the database."""


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


class PreflightOutcome(StrEnum):
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
    STEP_UNDECLARED = "step_undeclared"
    """A step of its code agent does not say whether it may run again."""
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
    repeats_steps: bool
    """A step of code that declares nothing may be repeated."""
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
    outcome: PreflightOutcome
    message: str
    hint: str
