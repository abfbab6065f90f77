"""Attempts: what a worker gets when it leases a job, what it writes, and what the database answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import NewRequest
from cortex_plane.jobs.model.jobs import JobKind, JobStatus
from cortex_plane.jobs.model.state import Changes
from cortex_plane.kernel.canonical import canonical
from cortex_plane.tenancy.model.access import Actor, Fact


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """A job that this worker leases now, with all that is needed to go on."""

    org_id: UUID
    job_id: UUID
    session_id: UUID
    agent_id: UUID
    agent_version: int
    kind: JobKind
    app: str
    payload: dict[str, Any]
    checkpoint: str | None
    checkpoint_mac: bytes | None
    epoch: int
    write_seq: int
    retry_count: int
    max_retries: int
    running_seconds: float
    model_config: dict[str, Any]
    skill_config: dict[str, Any]
    resource_limits: dict[str, Any]
    message_seq: int
    now: datetime
    agent: str
    """Its slug."""
    teams: list[UUID]
    session_kind: str
    policies: str
    """The version of the policies that hold for its org."""
    request_policies: list[dict[str, Any]] | None
    """What its submitter asked for beyond them."""
    waited_seconds: float | None
    """How long it was ready to go on; None where it is new."""
    bound: dict[str, Any] | None
    """The atlases that its session is bound to, and what their gates remember; None where it is bound to none."""
    hand_backs: int
    """How often in a row it was handed back without progress."""
    session_context: dict[str, Any] = field(default_factory=dict)
    """As it was when the job was claimed."""
    repeats_steps: bool = False
    """A step of code that declares nothing may be repeated: its agent was made by a release that always did."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SlotShares:
    """How orgs share the slots of a worker."""

    share: int | None = None
    """How many one org may have; None: all but the reserve."""
    reserve: int = 0
    """How many are for orgs that run nothing on this worker."""
    org_jobs: int | None = None
    """How many jobs of one org may run in the whole plane."""


UNSHARED = SlotShares()
"""Whoever asks gets what there is."""


NO_ROWS: frozenset[int] = frozenset()


class NewStep:
    """A response of the model and what it cost. Raises ``InvalidInput`` if it cannot be stored."""

    __slots__ = (
        "_json",
        "completion_tokens",
        "in_rows",
        "index",
        "message_seq",
        "prompt_tokens",
        "response",
        "seconds",
    )

    def __init__(
        self, response: Mapping[str, Any], *, index: int, message_seq: int, prompt_tokens: int, completion_tokens: int,
        seconds: float, in_rows: frozenset[int] = NO_ROWS,
    ) -> None:  # fmt: skip
        """``in_rows``: positions of the calls whose arguments the response leaves out if a write also has the rows of these calls."""
        self.response, self.index, self.message_seq, self.seconds = response, index, message_seq, seconds
        self.prompt_tokens, self.completion_tokens = prompt_tokens, completion_tokens
        self.in_rows, self._json = in_rows, self._encode(in_rows)

    def json(self, in_rows: frozenset[int]) -> str:
        """As a write stores it that also has the rows of these calls."""
        return self._json if in_rows == self.in_rows else self._encode(in_rows)

    def _encode(self, in_rows: frozenset[int]) -> str:
        if not in_rows:
            return canonical(self.response).decode()
        calls = [
            {"id": call["id"], "name": call["name"]} if position in in_rows else call
            for position, call in enumerate(self.response["calls"])
        ]
        return canonical({**self.response, "calls": calls}).decode()


@dataclass(kw_only=True)
class StepWrite:
    """Everything that one commit of an attempt holds; put together on the way to it."""

    checkpoint: str | None = None
    memory: str | None = None
    """JSON: the job's memory, where it changed."""
    mac: bytes | None = None
    step: NewStep | None = None
    message_seq: int = 0
    done_step: int | None = None
    calls: bytes | None = None
    """JSON: new rows of the ledger; those with status `intended` may be sent once this is durable."""
    in_rows: frozenset[int] = NO_ROWS
    """Positions of the calls of the response whose arguments are stored in their rows only."""
    outcomes: bytes | None = None
    arguments: tuple[str, ...] = ()
    results: tuple[str, ...] = ()
    """JSON each; calls and outcomes name theirs by its number, from 1."""
    intents: bytes | None = None
    """JSON: calls that have a row and may be sent once this is durable, with a grant or again."""
    dispatches: bool = False
    reads: bool = False
    """Calls that only read are next."""
    past_boundary: bool = False
    """It ends one step and begins the next: refused where somebody wants the job to stop between them."""
    stored: tuple[tuple[UUID, bytes], ...] = ()
    reply: str | None = None
    status: JobStatus | None = None
    """Where the job goes; None keeps the lease, RUNNING hands the job back."""
    error: str | None = None
    delay_seconds: float | None = 0
    """None: a job that sleeps is woken by a signal alone."""
    hold: str | None = None
    result: bytes | None = None
    policies: str | None = None
    """The version of the policies by which the calls were allowed."""
    requests: tuple[NewRequest, ...] = ()
    asked_by: Actor | None = None
    state: Changes | None = None
    """What the calls and operations of this write changed of the agent's state."""
    more: dict[str, Any] = field(default_factory=dict)
    """What not every write has, by the noun that it belongs to; see `record_more` in the database."""
    events: Sequence[tuple[str, dict[str, Any]]] = field(default_factory=tuple)
    facts: Sequence[Fact] = field(default_factory=tuple)

    def copy(self) -> StepWrite:
        """Every write is copied, so this takes a twentieth of the time of `dataclasses.replace`."""
        copy = object.__new__(StepWrite)
        copy.__dict__.update(self.__dict__)
        return copy


@dataclass(kw_only=True, slots=True)
class WriteResult:
    """What the database said to a write."""

    status: JobStatus
    session_id: UUID
    message_seq: int
    held: bool
    cancelled: bool
    dispatch_before: datetime | None
    now: datetime
    applied_before: bool
    policies: str
    held_seconds: float | None
    """How long ago somebody held it."""
    sent_at: float = 0.0
    """When the write that was answered went out, by the worker's own clock."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Leased:
    """A job that the database counts as run by a worker."""

    org_id: UUID
    id: UUID
    epoch: int
    hand_backs: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Orphan:
    """A job whose worker is dead."""

    org_id: UUID
    id: UUID
    worker_id: UUID
    worker: str
    epoch: int
    deaths: int
    cancelled: bool
    held: bool
    stopped: bool = False
    """Its worker ended as it should, and could only not hand it back in time: that is no death."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adoption:
    status: JobStatus
    action: str
    error: str | None = None


def adoption(orphan: Orphan, poison_deaths: int) -> Adoption:
    """What becomes of a dead worker's job. Several deaths without progress mean that the job itself kills."""
    if orphan.cancelled:
        return Adoption(status=JobStatus.CANCELLED, action="job_cancelled", error="cancelled")
    if not orphan.stopped and orphan.deaths + 1 >= poison_deaths:
        return Adoption(
            status=JobStatus.FAILED,
            action="job_failed",
            error=(
                f"Poison: {orphan.deaths + 1} workers died with job {orphan.id} without finishing a step."
                " Look for a tool that exhausts memory or ends its process, then `cortex job resubmit` it."
            ),
        )
    if orphan.held:
        return Adoption(status=JobStatus.PAUSED, action="job_paused")
    return Adoption(status=JobStatus.RUNNING, action="job_adopted")


MOST_HAND_BACKS = 10
"""How often in a row a job is handed back without progress before it fails."""
HAND_BACK_REMEDY = "Find out what changes whenever it runs, then `cortex job resubmit` it."
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 1.0, 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class HandBack:
    """What becomes of a job that its worker gives up although both could go on."""

    count: int
    """How often in a row that happened."""
    delay_seconds: float
    error: str | None = None
    """Why it fails instead."""


UNCOUNTED = HandBack(count=0, delay_seconds=0.0)


def hand_back(earlier: int, reason: str) -> HandBack:
    """The first time at once: something was decided meanwhile. Then later and later, and at last never again."""
    count = earlier + 1
    error = None
    if count >= MOST_HAND_BACKS:
        error = f"It was handed back {count} times in a row without finishing a step, the last time because: {reason}"
    delay = 0.0 if count == 1 else min(_LONGEST_DELAY_SECONDS, _FIRST_DELAY_SECONDS * 2.0 ** (count - 2))
    return HandBack(count=count, delay_seconds=delay, error=error)
