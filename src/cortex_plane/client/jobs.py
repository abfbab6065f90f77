"""Jobs, signals, workers and what models took."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.client.transport import Lost, Noun
from cortex_plane.jobs import routes
from cortex_plane.jobs.model import jobs as job_model
from cortex_plane.jobs.model.effects import Answer, Question
from cortex_plane.jobs.model.journal import JournalEntry, Signal, SignalDraft, SignalReceipt, Wait
from cortex_plane.jobs.model.usage import Grouping, UsageRow, UsageTotals
from cortex_plane.sessions.model.events import Event


class Jobs(Noun):
    async def submit(self, draft: job_model.JobDraft, *, idempotency_key: str | None = None) -> job_model.Job:
        return await self._plane.call(routes.SUBMIT_JOB, body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> job_model.Job:
        return await self._plane.call(routes.GET_JOB, id)

    def list(
        self,
        limit: int | None = None,
        *,
        status: job_model.JobStatus | None = None,
        session_id: UUID | None = None,
        agent: str | None = None,
    ) -> AsyncIterator[job_model.Job]:
        return self._plane.pages(routes.LIST_JOBS, limit=limit, status=status, session_id=session_id, agent=agent)

    def wait(self, id: UUID, *, timeout: float | None = None) -> Coroutine[Any, Any, job_model.Job]:
        """The job, once it has ended. Raises `TimeoutError` after so many seconds; the job goes on."""
        return self._ended(id, timeout)

    async def _ended(self, id: UUID, seconds: float | None) -> job_model.Job:
        async with asyncio.timeout(seconds):
            while True:
                async with aclosing(self._plane.events(routes.JOB_EVENTS, id, after=0, on_lost=None)) as events:
                    async for _ in events:
                        pass  # its stream ends with it
                job = await self.get(id)
                if job.finished_at is not None:
                    return job

    async def history(self, id: UUID) -> Sequence[job_model.JobChange]:
        return await self._plane.all(routes.GET_JOB_HISTORY, id)

    def steps(self, id: UUID, limit: int | None = None, *, above: int | None = None) -> AsyncIterator[job_model.Step]:
        """In order; with ``above`` only those after that one. The last may still be under way."""
        return self._plane.pages(routes.LIST_STEPS, id, limit=limit, above=above)

    def journal(self, id: UUID, limit: int | None = None, *, above: int | None = None) -> AsyncIterator[JournalEntry]:
        """What the code of a job did so far, in the order in which it was begun."""
        return self._plane.pages(routes.LIST_JOURNAL, id, limit=limit, above=above)

    def events(
        self, id: UUID, *, after: int = 0, follow: str | None = None, on_lost: Lost | None = None
    ) -> AsyncIterator[Event]:
        """What it does after number ``after``, until it ends; a lost connection is made again.

        ``follow="session"`` gives everything in its session, without end. ``on_lost`` is called when the plane is away.
        """
        return self._plane.events(routes.JOB_EVENTS, id, after=after, on_lost=on_lost, follow=follow)

    async def waits(self, id: UUID) -> Sequence[Wait]:
        """The signals that it waits for, and what came."""
        return await self._plane.all(routes.LIST_WAITS, id)

    async def checkpoint(self, id: UUID) -> dict[str, Any]:
        """The durable state, as the job would be resumed from it."""
        return await self._plane.call(routes.GET_CHECKPOINT, id)

    async def result(self, id: UUID, result_id: UUID) -> Any:
        """A result that was too large for its step."""
        return await self._plane.call(routes.GET_RESULT, id, result_id)

    async def questions(self, id: UUID) -> Sequence[Question]:
        """Calls of which nobody knows whether they happened."""
        return await self._plane.all(routes.LIST_QUESTIONS, id)

    async def settle(self, id: UUID, call_id: UUID, answer: Answer) -> job_model.SteeringResult:
        return await self._plane.call(routes.SETTLE_CALL, id, call_id, body=answer)

    async def pause(
        self,
        id: UUID,
        reason: str | None = None,
        *,
        correlation_id: str | None = None,
        within_seconds: int = job_model.HOLD_SECONDS,
    ) -> job_model.SteeringResult:
        """Hold it until it is resumed. One that runs stops at its next boundary, or is cut off after ``within_seconds``."""
        pause = job_model.Pause(reason=reason, correlation_id=correlation_id, within_seconds=within_seconds)
        return await self._plane.call(routes.PAUSE_JOB, id, body=pause)

    async def resume(
        self, id: UUID, note: str | None = None, *, operator_input: Any = None
    ) -> job_model.SteeringResult:
        """``operator_input``: what its model reads before it goes on, as your words. Raises `Conflict` where it is not held."""
        resumption = job_model.Resumption(note=note, operator_input=operator_input)
        return await self._plane.call(routes.RESUME_JOB, id, body=resumption)

    async def cancel(self, id: UUID, reason: str | None = None) -> job_model.SteeringResult:
        return await self._plane.call(routes.CANCEL_JOB, id, body=job_model.Cancellation(reason=reason))

    async def resubmit(self, id: UUID, *, idempotency_key: str | None = None) -> job_model.Job:
        return await self._plane.call(routes.RESUBMIT_JOB, id, idempotency_key=idempotency_key)


class Signals(Noun):
    async def send(
        self, name: str, key: str, payload: Any = None, *, idempotency_key: str | None = None
    ) -> SignalReceipt:
        """Wake every job that waits for it, now or later. Sending the same again changes nothing."""
        draft = SignalDraft(name=name, key=key, payload=payload)
        return await self._plane.call(routes.SEND_SIGNAL, body=draft, idempotency_key=idempotency_key)

    def list(
        self, limit: int | None = None, *, name: str | None = None, key: str | None = None
    ) -> AsyncIterator[Signal]:
        """Newest first. People who are not staff see their own."""
        return self._plane.pages(routes.LIST_SIGNALS, limit=limit, name=name, key=key)


class Usage(Noun):
    def list(
        self,
        by: Grouping = Grouping.DAY,
        limit: int | None = None,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        agent: str | None = None,
        job_id: UUID | None = None,
    ) -> AsyncIterator[UsageRow]:
        """Tokens and cost by day of UTC, agent, job or model."""
        return self._plane.pages(
            routes.LIST_USAGE, limit=limit, by=by, since=since, until=until, agent=agent, job_id=job_id
        )

    async def of_job(self, job_id: UUID) -> UsageTotals:
        return await self._plane.call(routes.GET_JOB_USAGE, job_id)


class Workers(Noun):
    async def list(self) -> Sequence[job_model.Worker]:
        """The processes that run jobs. Needs a platform key."""
        return await self._plane.all(routes.LIST_WORKERS)
