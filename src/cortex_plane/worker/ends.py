"""How an attempt ends: a value says how, and one writer turns it into the write that gives up the lease.

Any part of an attempt raises `Ended` with such a value. `EndWriter.run` catches it and writes it; a code agent, whose branches
share one lease, collects the values of all its branches first.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass, replace
from typing import Any, Protocol

import structlog

from cortex_plane.calls.rules.pipeline import PREVIEW
from cortex_plane.calls.verbs import steps
from cortex_plane.jobs.model.checkpoints import CheckpointStatus
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.model.state import Entries
from cortex_plane.jobs.rules import HAND_BACK_REMEDY, Assignment, StepWrite, WriteResult, hand_back
from cortex_plane.kernel.errors import RETRIED, ErrorClass, Unavailable
from cortex_plane.sessions.model.events import EventType
from cortex_plane.tenancy.model.access import Fact, worker_actor
from cortex_plane.worker.calls import Events, storable
from cortex_plane.worker.lease import CheckpointTooLarge, Lease, Lost, WorkerContext, WriteFailed

log = structlog.get_logger()

RESUBMIT = "Correct the cause, then `cortex job resubmit` it."


@dataclass(frozen=True, slots=True)
class JobCancelled:
    """Somebody cancelled the job."""


@dataclass(frozen=True, slots=True)
class JobFailed:
    message: str
    remedy: str
    write: StepWrite | None = None
    """What was done before, and is kept."""
    keep_checkpoint: bool = False
    """What is in memory may be ahead of what was written, so the checkpoint stays as it is."""


@dataclass(frozen=True, slots=True)
class JobRetried:
    kind: ErrorClass
    message: str
    retry_after: float | None = None
    """Seconds after which the provider wants to be asked again."""
    keep_checkpoint: bool = False


@dataclass(frozen=True, slots=True)
class JobHeld:
    """The job stops until somebody decides."""

    hold: Hold
    event: dict[str, Any]
    write: StepWrite | None = None


@dataclass(frozen=True, slots=True)
class JobPaused:
    """Somebody holds the job."""

    write: StepWrite | None = None


@dataclass(frozen=True, slots=True)
class JobSleeps:
    seconds: float
    reason: str
    write: StepWrite | None = None
    """Its events and facts, where they are others than usual."""


@dataclass(frozen=True, slots=True)
class JobHandedBack:
    """Another worker goes on. ``counted``: its plan is out of date, or its worker is lost; without progress that happens only so often."""

    reason: str
    counted: bool = False


@dataclass(frozen=True, slots=True)
class LastWrite:
    """A write that says itself where the job goes."""

    write: StepWrite
    keep_checkpoint: bool = False


End = JobCancelled | JobFailed | JobRetried | JobHeld | JobPaused | JobSleeps | JobHandedBack | LastWrite


class Ended(Exception):
    """The attempt is over. ``end`` is still to be written; None: the last write gave up the lease."""

    def __init__(self, end: End | None = None) -> None:
        super().__init__(type(end).__name__)
        self.end = end


class Writer(Protocol):
    """Makes one write durable, or raises."""

    @property
    def state(self) -> Entries:
        """The agent's state with everything that was recorded."""

    async def write(self, step: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult: ...

    async def flush(self) -> object:
        """Make durable what was to go with the next write. Raises `WriteFailed` where that cannot be."""

    def drop_recorded(self) -> None:
        """Forget what was to go with the next write. What was sent is in the ledger, and is settled from there."""

    def drop_usage(self) -> None: ...


def failure_events(error: str) -> Events:
    return [
        (EventType.ERROR, {"message": error[:PREVIEW]}),
        (EventType.STATUS, {"status": JobStatus.FAILED, "error": error[:PREVIEW]}),
    ]


async def refuse(worker: WorkerContext, assignment: Assignment, error: Exception) -> None:
    """End a job that cannot even begin, because what is stored about its agent cannot be read."""
    message = storable(
        f"Job {assignment.job_id} cannot start: version {assignment.agent_version} of its agent cannot be read: {error} "
        "Correct it with `cortex agent update`, then `cortex job resubmit` the job."
    )
    actor = worker_actor(assignment.org_id, worker.worker_id, worker.worker_name)
    fact = Fact.of(actor, "job_failed", job=str(assignment.job_id), error=message[:2000])
    write = StepWrite(status=JobStatus.FAILED, error=message[:8000], events=failure_events(message), facts=[fact])
    await steps.advance(
        worker.db, assignment, worker.worker_id, assignment.write_seq + 1, write, worker.dispatch_seconds
    )


class EndWriter:
    """Runs the loop of an attempt, and writes how it ended."""

    def __init__(self, lease: Lease, writer: Writer) -> None:
        self._lease, self._writer = lease, writer

    async def run(self, loop: Callable[[], Awaitable[None]]) -> None:
        """Until the lease is given up. Raises `WriteFailed` where even that could not be written."""
        assignment = self._lease.assignment
        try:
            try:
                await loop()
            except Ended as stop:
                if stop.end is not None:
                    await self._write(stop.end)
        except Lost:
            log.warning("job lost", job_id=str(assignment.job_id), epoch=assignment.epoch)
        except WriteFailed:
            raise
        except asyncio.CancelledError:
            is_lost = self._lease.is_worker_lost
            reason = "the connection to its worker was lost" if is_lost else "the worker stops"
            try:
                await self._hand_back(JobHandedBack(reason, counted=is_lost))
            except Exception as error:
                raise WriteFailed(str(error)) from error
            raise
        except Unavailable as error:
            # A read failed. What was done is written all the same.
            try:
                await self._quietly(self._writer.flush())
            except WriteFailed:
                raise
            except Exception as refusal:
                raise WriteFailed(f"{error} {refusal}") from refusal
            raise WriteFailed(str(error)) from error
        except CheckpointTooLarge as error:
            await self._quietly(self._fail_too_large(error))
        except Exception as error:
            log.exception("attempt failed", job_id=str(assignment.job_id))
            await self._try_again(f"{type(error).__name__}: {error}")

    async def _try_again(self, message: str) -> None:
        """What cannot be written must not come back for ever: then it is dropped, and the try is counted all the same."""
        end = JobRetried(ErrorClass.INFRASTRUCTURE, message, keep_checkpoint=True)
        for drop in (self._writer.drop_recorded, self._writer.drop_usage):
            try:
                await self._quietly(self._retry(end))
                return
            except WriteFailed:
                raise
            except Exception:
                log.exception("dropped what cannot be written", job_id=str(self._lease.assignment.job_id))
                drop()
        await self._quietly(self._retry(end))

    async def _write(self, end: End) -> None:
        match end:
            case JobFailed():
                await self._fail(end)
            case JobRetried():
                await self._retry(end)
            case JobHandedBack():
                await self._hand_back(end)
            case LastWrite():
                await self._writer.write(end.write, keep_checkpoint=end.keep_checkpoint)
            case JobCancelled():
                await self._writer.write(self._cancelled())
            case JobHeld():
                await self._writer.write(self._held(end))
            case JobPaused():
                await self._writer.write(self._paused(end))
            case JobSleeps():
                await self._writer.write(self._sleeping(end))

    def _cancelled(self) -> StepWrite:
        events = [("status", {"status": JobStatus.CANCELLED})]
        facts = [self._lease.fact("job_cancelled")]
        return StepWrite(status=JobStatus.CANCELLED, error="cancelled", events=events, facts=facts)

    def _held(self, end: JobHeld) -> StepWrite:
        write = end.write or StepWrite()
        pause = ("session_paused", {"reason": end.hold, "pause_source": "policy", **end.event})
        facts = [self._lease.fact("job_paused", reason=end.hold, **end.event), *write.facts]
        events = [("status", {"status": JobStatus.PAUSED, "reason": end.hold}), pause, *write.events]
        return replace(write, status=JobStatus.PAUSED, hold=end.hold, events=events, facts=facts)

    def _paused(self, end: JobPaused) -> StepWrite:
        write = end.write or StepWrite()
        events = [*write.events, ("status", {"status": JobStatus.PAUSED})]
        return replace(
            write, status=JobStatus.PAUSED, events=events, facts=[*write.facts, self._lease.fact("job_paused")]
        )

    def _sleeping(self, end: JobSleeps) -> StepWrite:
        write = end.write or StepWrite(facts=[self._lease.fact("job_sleeps", reason=end.reason)])
        events = [*write.events, ("status", {"status": JobStatus.SLEEPING, "reason": end.reason})]
        return replace(write, status=JobStatus.SLEEPING, delay_seconds=max(0.0, end.seconds), events=events)

    async def _fail(self, end: JobFailed) -> None:
        lease, write = self._lease, end.write or StepWrite()
        step = f"Job {lease.assignment.job_id}, step {lease.progress.step}"
        error = storable(f"{step}: {end.message} {end.remedy}".strip())
        lease.progress.status = CheckpointStatus.FAILED
        events = [*write.events, *failure_events(error)]
        facts = [lease.fact("job_failed", error=error[:2000]), *write.facts]
        failure = replace(write, status=JobStatus.FAILED, error=error[:8000], events=events, facts=facts)
        await self._writer.write(failure, keep_checkpoint=end.keep_checkpoint)

    async def _fail_too_large(self, error: CheckpointTooLarge) -> None:
        end = JobFailed(str(error), error.hint, error.outcomes)
        try:
            await self._fail(end)
        except CheckpointTooLarge:
            # Even without what could be left out: then the one that was written last stays.
            await self._fail(replace(end, keep_checkpoint=True))

    async def _retry(self, end: JobRetried) -> None:
        lease, assignment = self._lease, self._lease.assignment
        if end.kind not in RETRIED or assignment.retry_count >= assignment.max_retries:
            why = f"out of retries after {assignment.retry_count}" if end.kind in RETRIED else end.kind
            return await self._fail(JobFailed(f"{end.message} ({why})", RESUBMIT, keep_checkpoint=end.keep_checkpoint))
        message = storable(end.message)
        chance = random.random()  # noqa: S311 -- jitter
        delay = self._lease.limits.backoff.delay_after(end.retry_after, assignment.retry_count, chance)
        error = f"Job {assignment.job_id}, step {lease.progress.step}: {message}"[:8000]
        trouble: Events = [(EventType.ERROR, {"message": message[:PREVIEW], "retry": True})]
        events = [*trouble, (EventType.STATUS, {"status": JobStatus.RETRY, "error": message[:PREVIEW]})]
        facts = [lease.fact("job_retried", error=message[:2000], error_class=str(end.kind))]
        write = StepWrite(status=JobStatus.RETRY, error=error, delay_seconds=delay, events=events, facts=facts)
        await self._writer.write(write, keep_checkpoint=end.keep_checkpoint)
        return None

    async def _hand_back(self, end: JobHandedBack) -> None:
        lease = self._lease
        write = StepWrite(status=JobStatus.RUNNING, facts=[lease.fact("job_handed_back", reason=end.reason)])
        if end.counted:
            outcome = hand_back(0 if lease.has_progress else lease.assignment.hand_backs, end.reason)
            if outcome.error is not None:
                return await self._quietly(self._fail(JobFailed(outcome.error, HAND_BACK_REMEDY)))
            write.delay_seconds, write.more = outcome.delay_seconds, {"hand_backs": outcome.count}
        return await self._quietly(self._writer.write(write))

    async def _quietly(self, write: Coroutine[Any, Any, Any]) -> None:
        try:
            await write
        except Lost:
            pass
        except CheckpointTooLarge as error:
            await self._quietly(self._fail_too_large(error))
        except (WriteFailed, Unavailable) as error:
            raise WriteFailed(str(error)) from error
