"""Jobs, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cortex_plane.client.nouns import Noun
from cortex_plane.jobs.model.effects import Answer, Question
from cortex_plane.jobs.model.jobs import Job, JobChange, JobStatus, SteeringResult, Step
from cortex_plane.jobs.model.journal import JournalEntry

if TYPE_CHECKING:
    from cortex_plane.client.events import Lost
    from cortex_plane.jobs.model.job_drafts import JobDraft
    from cortex_plane.jobs.model.journal import Wait
    from cortex_plane.sessions.model.events import Event


class Jobs(Noun):
    async def submit(self, draft: JobDraft, *, idempotency_key: str | None = None) -> Job:
        return await self._transport.one(Job, "POST", "/v1/jobs", body=draft, idempotency_key=idempotency_key)

    async def get(self, id: UUID) -> Job:
        return await self._transport.one(Job, "GET", f"/v1/jobs/{id}")

    def list(
        self,
        limit: int | None = None,
        *,
        status: JobStatus | None = None,
        session_id: UUID | None = None,
        agent: str | None = None,
    ) -> AsyncIterator[Job]:
        return self._transport.pages(
            Job, "/v1/jobs", limit=limit, status=status, session_id=session_id, agent=agent
        )

    async def history(self, id: UUID) -> Sequence[JobChange]:
        return await self._transport.all(JobChange, f"/v1/jobs/{id}/history")

    def steps(self, id: UUID, limit: int | None = None, *, above: int | None = None) -> AsyncIterator[Step]:
        """In order; with ``above`` only those after that one. The last may still be under way."""
        return self._transport.pages(Step, f"/v1/jobs/{id}/steps", limit=limit, above=above)

    def journal(
        self, id: UUID, limit: int | None = None, *, above: int | None = None
    ) -> AsyncIterator[JournalEntry]:
        """What the code of a job did so far, in the order in which it was begun."""
        return self._transport.pages(JournalEntry, f"/v1/jobs/{id}/journal", limit=limit, above=above)

    def events(
        self, id: UUID, *, after: int = 0, follow: str | None = None, on_lost: Lost | None = None
    ) -> AsyncIterator[Event]:
        """What it does after number ``after``, until it ends; a lost connection is made again.

        ``follow="session"`` gives everything in its session, without end. ``on_lost`` is told of a plane that is away.
        """
        return self._transport.events(f"/v1/jobs/{id}/events", after, on_lost, follow=follow)

    async def waits(self, id: UUID) -> Sequence[Wait]:
        """The signals that it waits for, and what came."""
        from cortex_plane.jobs.model.journal import Wait

        return await self._transport.all(Wait, f"/v1/jobs/{id}/waits")

    async def checkpoint(self, id: UUID) -> dict[str, Any]:
        """The durable state, as the job would be resumed from it."""
        blob: dict[str, Any] = await self._transport.send("GET", f"/v1/jobs/{id}/checkpoint")
        return blob

    async def result(self, id: UUID, result_id: UUID) -> Any:
        """A result that was too large for its step."""
        return await self._transport.send("GET", f"/v1/jobs/{id}/results/{result_id}")

    async def questions(self, id: UUID) -> Sequence[Question]:
        """Calls of which nobody knows whether they happened."""
        return await self._transport.all(Question, f"/v1/jobs/{id}/questions")

    async def settle(self, id: UUID, call_id: UUID, answer: Answer) -> SteeringResult:
        return await self._transport.one(
            SteeringResult, "POST", f"/v1/jobs/{id}/calls/{call_id}/settle", body=answer
        )

    async def pause(self, id: UUID, reason: str | None = None) -> SteeringResult:
        from cortex_plane.jobs.model.job_drafts import Pause

        return await self._transport.one(
            SteeringResult, "POST", f"/v1/jobs/{id}/pause", body=Pause(reason=reason)
        )

    async def resume(self, id: UUID, note: str | None = None) -> SteeringResult:
        from cortex_plane.jobs.model.job_drafts import Resumption

        return await self._transport.one(
            SteeringResult, "POST", f"/v1/jobs/{id}/resume", body=Resumption(note=note)
        )

    async def cancel(self, id: UUID, reason: str | None = None) -> SteeringResult:
        from cortex_plane.jobs.model.job_drafts import Cancellation

        return await self._transport.one(
            SteeringResult, "POST", f"/v1/jobs/{id}/cancel", body=Cancellation(reason=reason)
        )

    async def resubmit(self, id: UUID, *, idempotency_key: str | None = None) -> Job:
        return await self._transport.one(
            Job, "POST", f"/v1/jobs/{id}/resubmit", idempotency_key=idempotency_key
        )
