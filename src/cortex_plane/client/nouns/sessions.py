"""Sessions, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from cortex_plane.calls.model import AnswerReceipt, Permissions, Resolution, ResolutionRequest
from cortex_plane.client.calls import Calls, ExternalSession
from cortex_plane.client.nouns import Noun
from cortex_plane.client.resolutions import Resolutions
from cortex_plane.jobs.model.jobs import Pause, Resumption, SessionReceipt
from cortex_plane.sessions.model.sessions import (
    IngestedMessage,
    Message,
    MessageDraft,
    Session,
    SessionChange,
    SessionDraft,
    SessionKind,
    SessionMemory,
    SessionStatus,
    Termination,
)

if TYPE_CHECKING:
    from cortex_plane.client.events import Lost
    from cortex_plane.sessions.model.events import Event


class Sessions(Noun):
    async def create(self, draft: SessionDraft, *, idempotency_key: str | None = None) -> Session:
        return await self._transport.one(
            Session, "POST", "/v1/sessions", body=draft, idempotency_key=idempotency_key
        )

    async def open_external(
        self,
        agent: str,
        *,
        title: str | None = None,
        context: dict[str, Any] | None = None,
        idempotency_key: str | None = None,
    ) -> ExternalSession:
        """For an agent that runs here: it asks with `authorize` before it acts."""
        draft = SessionDraft(agent=agent, kind=SessionKind.EXTERNAL, title=title, context=context or {})
        made = await self.create(draft, idempotency_key=idempotency_key)
        return ExternalSession(made, Calls(self._transport))

    async def get(self, id: UUID) -> Session:
        return await self._transport.one(Session, "GET", f"/v1/sessions/{id}")

    def list(
        self,
        limit: int | None = None,
        *,
        status: SessionStatus | None = None,
        agent: str | None = None,
        member_id: UUID | None = None,
    ) -> AsyncIterator[Session]:
        return self._transport.pages(
            Session, "/v1/sessions", limit=limit, status=status, agent=agent, member_id=member_id
        )

    async def update(self, id: UUID, change: SessionChange, *, revision: int | None = None) -> Session:
        return await self._transport.one(
            Session, "PATCH", f"/v1/sessions/{id}", body=change, revision=revision
        )

    async def terminate(self, id: UUID, reason: str | None = None) -> Session:
        body = Termination(reason=reason)
        return await self._transport.one(Session, "POST", f"/v1/sessions/{id}/terminate", body=body)

    async def pause(self, id: UUID, reason: str | None = None) -> SessionReceipt:
        """Hold it until it is resumed; jobs that run stop at their next boundary."""
        return await self._transport.one(
            SessionReceipt, "POST", f"/v1/sessions/{id}/pause", body=Pause(reason=reason)
        )

    async def resume(self, id: UUID, note: str | None = None) -> SessionReceipt:
        return await self._transport.one(
            SessionReceipt, "POST", f"/v1/sessions/{id}/resume", body=Resumption(note=note)
        )

    async def permissions(self, id: UUID) -> Permissions:
        """What is allowed in it now, and what did it."""
        return await Resolutions(self._transport).permissions(id)

    async def resolve(self, id: UUID, request: ResolutionRequest) -> Resolution:
        return await Resolutions(self._transport).resolve(id, request)

    async def answer(
        self, id: UUID, gate: str, answers: dict[str, Any], *, call: str | None = None
    ) -> AnswerReceipt:
        """Of an agent that runs elsewhere."""
        return await Resolutions(self._transport).answer(id, gate, answers, call=call)

    async def send(self, id: UUID, text: str, *, idempotency_key: str | None = None) -> IngestedMessage:
        return await self._transport.one(
            IngestedMessage,
            "POST",
            f"/v1/sessions/{id}/messages",
            body=MessageDraft(text=text),
            idempotency_key=idempotency_key,
        )

    def messages(self, id: UUID, limit: int | None = None) -> AsyncIterator[Message]:
        return self._transport.pages(Message, f"/v1/sessions/{id}/messages", limit=limit)

    def memory(self, id: UUID, limit: int | None = None) -> AsyncIterator[SessionMemory]:
        """What is kept of what no longer fits into the model's window: the newest first, then how it came about."""
        return self._transport.pages(SessionMemory, f"/v1/sessions/{id}/memory", limit=limit)

    def events(self, id: UUID, *, after: int = 0, on_lost: Lost | None = None) -> AsyncIterator[Event]:
        """What happens in it after number ``after``, without end; a lost connection is made again."""
        return self._transport.events(f"/v1/sessions/{id}/events", after, on_lost)
