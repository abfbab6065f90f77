"""The lease of one job: who holds it, where the job stands, and the writes that move it on.

Every write is fenced and numbered. Nothing goes on without its write: an attempt that cannot write gives the job back.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, NoReturn
from uuid import UUID

import structlog

from cortex_plane.calls.verbs import steps
from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.model.checkpoints import (
    WARN_BYTES,
    ActiveTool,
    Checkpoint,
    CheckpointStatus,
    Cursor,
    LogEntry,
    Phase,
    SealedCheckpoint,
    TokenUsage,
    log_with,
    seal,
)
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.model.usage import OpenModelCall
from cortex_plane.jobs.rules.attempts import HAND_BACK_REMEDY, Assignment, StepWrite, WriteResult, hand_back
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import RETRIED, Conflict, ErrorClass, TooLarge, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import worker_actor
from cortex_plane.worker import step_events
from cortex_plane.worker.calls import Call, storable
from cortex_plane.worker.limits import DatabaseTime, Limits, ticks
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App

log = structlog.get_logger()

WRITE_TRIES = 6
PREVIEW = 500


def checkpoint_key(master_key: bytes, org_id: UUID) -> bytes:
    """Each org's checkpoints are sealed with a key of its own."""
    return Vault(master_key).checkpoint_key(org_id)


def prompt_of(model_config: Mapping[str, Any], app: App) -> tuple[str | None, str]:
    """The agent's own prompt and its app's instructions, and their hash."""
    parts = (model_config.get("system_prompt"), app.instructions)
    prompt = "\n\n".join(part for part in parts if part) or None
    return prompt, hashlib.sha256((prompt or "").encode()).hexdigest()


@dataclass(frozen=True, slots=True)
class WorkerContext:
    """What all attempts of a worker share."""

    db: Database
    worker_id: UUID
    worker_name: str
    apps: dict[str, App]
    backends: Backends
    master_key: bytes
    dispatch_seconds: float
    inline_result_bytes: int
    max_result_bytes: int
    stopping: asyncio.Event

    def org_key(self, org_id: UUID) -> bytes:
        return checkpoint_key(self.master_key, org_id)


class Ended(Exception):
    """The lease was given up with the last write."""


class Lost(Exception):
    """The job is not ours any more: stop, write nothing."""


class WriteFailed(Exception):
    """A write could not be made, and nothing may happen without it. The job must be handed back."""


class CheckpointTooLarge(Exception):
    """The checkpoint is too large to be written: the job ends, and what was done is kept. Nothing was written."""

    def __init__(self, error: TooLarge, kept: StepWrite) -> None:
        super().__init__(error.message)
        self.hint = error.hint
        self.kept = kept


async def refuse(host: WorkerContext, given: Assignment, error: Exception) -> None:
    """End a job that cannot even begin, because what is stored about its agent cannot be read."""
    message = storable(
        f"Job {given.job_id} cannot start: version {given.agent_version} of its agent cannot be read: {error} "
        "Correct it with `cortex agent update`, then `cortex job resubmit` the job."
    )
    actor = worker_actor(given.org_id, host.worker_id, host.worker_name)
    write = StepWrite(
        status=JobStatus.FAILED,
        error=message[:8000],
        events=step_events.failed(message),
        facts=[Fact.of(actor, "job_failed", job=str(given.job_id), error=message[:2000])],
    )
    await steps.advance(host.db, given, host.worker_id, given.write_seq + 1, write, host.dispatch_seconds)


class Lease:
    """A job that this worker holds now."""

    def __init__(self, host: WorkerContext, given: Assignment) -> None:
        self.host = host
        self.given = given
        self.limits = Limits.of(given)
        self.key = host.org_key(given.org_id)
        self.actor = worker_actor(given.org_id, host.worker_id, host.worker_name)
        self.started = ticks()
        self.time = DatabaseTime(given.now, self.started)
        self.number = given.write_seq
        self.unread_to = given.message_seq
        """How far the session's messages go, as far as we were told."""
        self.policies_version = given.policies
        """Of the policies by which this attempt authorises its calls."""
        self.policies_heard = given.policies
        """Of those that hold now, as far as we were told."""
        self.notes: list[Fact] = []
        """What goes on the trail with the next write."""
        self.prompt, self.prompt_hash = prompt_of(given.model_config, host.apps[given.app])
        self.at = Progress(given.agent_id, self.prompt_hash)
        self.asking: list[OpenModelCall] = []
        """Those to the model that are under way."""
        self.progressed = False
        """This attempt recorded or finished a step."""
        self._stored: list[tuple[UUID, bytes]] = []

    def fact(self, action: str, **data: Any) -> Fact:
        return Fact.of(self.actor, action, job=str(self.given.job_id), **data)

    # Ends ------------------------------------------------------------------------------------------------------

    async def end_cancelled(self) -> NoReturn:
        await self.write(
            StepWrite(
                status=JobStatus.CANCELLED,
                error="cancelled",
                events=[("status", {"status": JobStatus.CANCELLED})],
                facts=[self.fact("job_cancelled")],
            )
        )
        raise Ended

    async def fail(
        self, message: str, remedy: str, write: StepWrite | None = None, *, keep_checkpoint: bool = False
    ) -> NoReturn:
        error = storable(f"Job {self.given.job_id}, step {self.at.step}: {message} {remedy}".strip())
        self.at.status = CheckpointStatus.FAILED
        write = write or StepWrite()
        await self.write(
            replace(
                write,
                status=JobStatus.FAILED,
                error=error[:8000],
                events=[*write.events, *step_events.failed(error)],
                facts=[self.fact("job_failed", error=error[:2000]), *write.facts],
            ),
            keep_checkpoint=keep_checkpoint,
        )
        raise Ended

    async def retry(
        self, kind: ErrorClass, message: str, *, keep_checkpoint: bool = False, wished: float | None = None
    ) -> NoReturn:
        """``keep_checkpoint``: what is in memory may be ahead of what was written, so it is not kept. ``wished``: seconds
        after which whoever failed wants to be asked again."""
        remedy = "Correct the cause, then `cortex job resubmit` it."
        if kind not in RETRIED:
            await self.fail(f"{message} ({kind})", remedy, keep_checkpoint=keep_checkpoint)
        if self.given.retry_count >= self.given.max_retries:
            message = f"{message} (out of retries after {self.given.retry_count})"
            await self.fail(message, remedy, keep_checkpoint=keep_checkpoint)
        message = storable(message)
        chance = random.random()  # noqa: S311 -- jitter
        delay = self.limits.backoff.delay_after(wished, self.given.retry_count, chance)
        await self.write(
            StepWrite(
                status=JobStatus.RETRY,
                error=f"Job {self.given.job_id}, step {self.at.step}: {message}"[:8000],
                delay_seconds=delay,
                events=step_events.tried_again(message),
                facts=[self.fact("job_retried", error=message[:2000], error_class=str(kind))],
            ),
            keep_checkpoint=keep_checkpoint,
        )
        raise Ended

    async def hold(self, hold: Hold, event: dict[str, Any], write: StepWrite | None = None) -> NoReturn:
        """Stop here until somebody decides."""
        write = write or StepWrite()
        await self.write(
            replace(
                write,
                status=JobStatus.PAUSED,
                hold=hold,
                events=[
                    ("status", {"status": JobStatus.PAUSED, "reason": hold}),
                    ("session_paused", {"reason": hold, "pause_source": "policy", **event}),
                    *write.events,
                ],
                facts=[self.fact("job_paused", reason=hold, **event), *write.facts],
            )
        )
        raise Ended

    async def sleep(self, seconds: float, reason: str, told: StepWrite | None = None) -> NoReturn:
        """``told``: what readers and the trail learn of it, where that is more than usual."""
        told = told or StepWrite(facts=[self.fact("job_sleeps", reason=reason)])
        await self.write(
            replace(
                told,
                status=JobStatus.SLEEPING,
                delay_seconds=max(0.0, seconds),
                events=[*told.events, ("status", {"status": JobStatus.SLEEPING, "reason": reason})],
            )
        )
        raise Ended

    async def hand_back(self, reason: str) -> None:
        """Because the worker stops: whoever is free goes on at once."""
        await self.quietly(
            self.write(
                StepWrite(status=JobStatus.RUNNING, facts=[self.fact("job_handed_back", reason=reason)])
            )
        )

    async def hand_back_counted(self, reason: str) -> None:
        """Because what it was about to do does not hold any more. Without progress in between that is done only so often."""
        handed = hand_back(0 if self.progressed else self.given.hand_backs, reason)
        if handed.error is not None:
            await self.quietly(self.fail(handed.error, HAND_BACK_REMEDY))
            return
        await self.quietly(
            self.write(
                StepWrite(
                    status=JobStatus.RUNNING,
                    delay_seconds=handed.delay_seconds,
                    more={"hand_backs": handed.count},
                    facts=[self.fact("job_handed_back", reason=reason)],
                )
            )
        )

    async def quietly(self, write: Any) -> None:
        try:
            await write
        except (Ended, Lost):
            pass
        except CheckpointTooLarge as error:
            await self.quietly(self.end_overgrown(error))
        except (WriteFailed, Unavailable) as error:
            raise WriteFailed(str(error)) from error

    async def end_overgrown(self, error: CheckpointTooLarge) -> NoReturn:
        try:
            await self.fail(str(error), error.hint, error.kept)
        except CheckpointTooLarge:
            # Even without what could be left out: then the one that was written last stays.
            await self.fail(str(error), error.hint, error.kept, keep_checkpoint=True)

    # Limits ----------------------------------------------------------------------------------------------------

    def job_seconds_left(self) -> float:
        used = self.given.running_seconds + (ticks() - self.started)
        return self.limits.resources.timeout_seconds - used

    async def check_limits(self) -> None:
        limits = self.limits.resources
        asked = self.at.iterations + len(self.asking)
        if asked >= limits.max_iterations:
            await self.fail(
                f"The model was asked {asked} times, which is the limit of its agent.",
                "It may be going in circles: look at its steps, or raise `max_iterations`.",
            )
        used = self.at.prompt_tokens + self.at.completion_tokens
        if limits.token_budget is not None and used >= limits.token_budget:
            await self.fail(
                f"The job used {used} tokens; its budget is {limits.token_budget}.",
                "Raise `token_budget` in the agent's resource limits.",
            )
        await self.check_time()

    async def check_time(self) -> None:
        if self.job_seconds_left() <= 0:
            await self.fail(*self.ran_too_long)

    @property
    def ran_too_long(self) -> tuple[str, str]:
        """What is said of it, and what helps."""
        seconds = self.limits.resources.timeout_seconds
        return (
            f"The job ran longer than {seconds} s.",
            "Raise `timeout_seconds` in the agent's resource limits.",
        )

    # Large results ---------------------------------------------------------------------------------------------

    def keep_result(self, call: Call, result: bytes) -> None:
        """A result as the row keeps it: whole while it is small, by reference where it is not."""
        if len(result) <= self.host.inline_result_bytes:
            call.result = result
            return
        preview: dict[str, Any] = {"bytes": len(result), "preview": result[:2000].decode(errors="ignore")}
        if len(result) > self.host.max_result_bytes:
            preview["dropped"] = f"larger than {self.host.max_result_bytes} bytes, so it was not kept"
        else:
            call.result_id = new_id()
            preview["stored_result"] = str(call.result_id)
            self._stored.append((call.result_id, result))
        call.result = canonical(preview)

    def take_stored(self) -> list[tuple[UUID, bytes]]:
        taken, self._stored = self._stored, []
        return taken

    # Writing ---------------------------------------------------------------------------------------------------

    def _sealed(self) -> SealedCheckpoint:
        checkpoint = self.at.checkpoint(new_id(), self.time.now())
        sealed = seal(checkpoint, job_id=self.given.job_id, key=self.key)
        if sealed.size > WARN_BYTES:
            log.warning("checkpoint is large", job_id=str(self.given.job_id), bytes=sealed.size)
        return sealed

    async def write(self, write: StepWrite, *, keep_checkpoint: bool = False) -> WriteResult:
        """Durable, or the attempt is over: nothing goes on without its write."""
        write = replace(
            write,
            message_seq=self.at.message_seq,
            policies=write.policies or self.policies_version,
            asked_by=self.actor,
        )
        if not keep_checkpoint:
            try:
                sealed = self._sealed()
            except TooLarge as error:
                self.at.active_tools, self.at.working_data = (), {}
                # Raised, because whoever writes may hold what others wait for: the end is written when nobody does.
                kept = StepWrite(outcomes=write.outcomes, results=write.results, stored=write.stored)
                raise CheckpointTooLarge(error, kept) from error
            write.checkpoint, write.mac = sealed.text, sealed.mac
        self.number += 1
        # Taken now: what a parallel branch notes meanwhile goes with the write after this one.
        notes, self.notes = self.notes, []
        write.facts = [*notes, *write.facts]
        try:
            written = await self._send(write)
        except BaseException as error:
            self.notes = [*notes, *self.notes]
            if not isinstance(error, (WriteFailed, Lost, asyncio.CancelledError)):
                # Refused, so nothing was written: the number is free.
                self.number -= 1
            raise
        if write.status is JobStatus.COMPLETED and written.status is not JobStatus.COMPLETED:
            # Somebody said something more: nothing was written either.
            self.notes = [*notes, *self.notes]
            self.number -= 1
        self.progressed = self.progressed or write.step is not None or write.done_step is not None
        self.unread_to = max(self.unread_to, written.message_seq)
        self.policies_heard = written.policies
        return written

    async def _send(self, write: StepWrite) -> WriteResult:
        for tries in range(1, WRITE_TRIES + 1):
            sent = ticks()
            try:
                written = await steps.advance(
                    self.host.db,
                    self.given,
                    self.host.worker_id,
                    self.number,
                    write,
                    self.host.dispatch_seconds,
                )
            except (Unavailable, Conflict) as error:
                if isinstance(error, Conflict) and error.code != "retry":
                    if error.code != "lease_expired":
                        raise
                    # Perhaps nobody has taken the job yet, and nobody will, once the lease is renewed: hand it back.
                    raise WriteFailed(str(error)) from error
                # The write may have been applied or not. It is numbered, so sending it again is safe.
                if tries == WRITE_TRIES:
                    raise WriteFailed(str(error)) from error
                await asyncio.sleep(0.05 * 2**tries * random.random())  # noqa: S311 -- jitter
                continue
            if written is None:
                raise Lost
            self.time.heard(written.now, ticks())
            return replace(written, sent=sent)
        raise AssertionError("the last try returns or raises")


@dataclass(slots=True)
class Progress:
    agent_id: UUID
    prompt_hash: str
    step: int = 0
    phase: Phase = Phase.MODEL
    message_seq: int = 0
    iterations: int = 0
    invocation: UUID | None = None
    gates: Mapping[str, int] = field(default_factory=dict)
    window_step: int = 0
    window_seq: int = 0
    status: CheckpointStatus = CheckpointStatus.IN_PROGRESS
    last_step: int = 0
    last_step_id: str = "start"
    active_tools: tuple[ActiveTool, ...] = ()
    working_data: Mapping[str, bytes] = field(default_factory=dict)
    accumulated_facts: tuple[str, ...] = ()
    conversation_summary: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    log: tuple[LogEntry, ...] = ()

    @classmethod
    def of(cls, checkpoint: Checkpoint) -> Progress:
        cursor, usage = checkpoint.cursor, checkpoint.token_usage
        return cls(
            agent_id=checkpoint.agent_id,
            prompt_hash=checkpoint.system_prompt_hash,
            step=cursor.step,
            phase=cursor.phase,
            message_seq=cursor.message_seq,
            iterations=cursor.iterations,
            invocation=cursor.invocation,
            gates=cursor.gates,
            window_step=cursor.window_step,
            window_seq=cursor.window_seq,
            status=checkpoint.status,
            last_step=checkpoint.step_index,
            last_step_id=checkpoint.step_id,
            active_tools=checkpoint.active_tools,
            working_data=checkpoint.working_data,
            accumulated_facts=checkpoint.accumulated_facts,
            conversation_summary=checkpoint.conversation_summary,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            log=checkpoint.execution_log,
        )

    def checkpoint(self, id: UUID, at: datetime) -> Checkpoint:
        return Checkpoint(
            checkpoint_id=id,
            agent_id=self.agent_id,
            created_at=at,
            step_index=self.last_step,
            step_id=self.last_step_id,
            status=self.status,
            cursor=Cursor(
                step=self.step,
                phase=self.phase,
                message_seq=self.message_seq,
                iterations=self.iterations,
                invocation=self.invocation,
                gates=self.gates,
                window_step=self.window_step,
                window_seq=self.window_seq,
            ),
            system_prompt_hash=self.prompt_hash,
            active_tools=self.active_tools,
            working_data=self.working_data,
            accumulated_facts=self.accumulated_facts,
            conversation_summary=self.conversation_summary,
            token_usage=TokenUsage(
                prompt_tokens=self.prompt_tokens, completion_tokens=self.completion_tokens
            ),
            execution_log=self.log,
        )

    def finished(self, entry: LogEntry) -> None:
        self.last_step, self.last_step_id = entry.step_index, entry.step_id
        self.log = log_with(self.log, entry)
