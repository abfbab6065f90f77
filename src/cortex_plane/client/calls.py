"""Calls of an agent that runs elsewhere, as the client makes them by hand. `plane.guard` makes them for a function."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from cortex_plane.calls.model import (
    AnswerReceipt,
    CallDraft,
    CallShown,
    Ending,
    ExternalCall,
    IntentDraft,
    OutcomeDraft,
    OutcomeReceipt,
    OutcomeStatus,
    Permissions,
    Resolution,
    ResolutionRequest,
)
from cortex_plane.client.resolutions import Resolutions
from cortex_plane.client.transport import Transport
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.sessions.model.sessions import Session


class Calls:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def authorize(self, session_id: UUID, draft: CallDraft) -> ExternalCall:
        """Ask before acting; the answer's `next` says what to do."""
        return await self._transport.one(ExternalCall, "POST", f"/v1/sessions/{session_id}/calls", body=draft)

    async def get(self, id: UUID, *, wait: float = 0) -> ExternalCall:
        """With ``wait``, once there is something to do, or after so many seconds (at most 60)."""
        query = {"wait": wait} if wait else None
        return await self._transport.one(ExternalCall, "GET", f"/v1/calls/{id}", query=query)

    def list(
        self, limit: int | None = None, *, session_id: UUID | None = None, status: CallStatus | None = None
    ) -> AsyncIterator[CallShown]:
        return self._transport.pages(
            CallShown, "/v1/calls", limit=limit, session_id=session_id, status=status
        )

    async def intent(
        self, call: ExternalCall, *, sender: str | None = None, did_not_happen: bool = False
    ) -> ExternalCall:
        """Begin with the arguments that ``call`` shows. Act only where the answer says `run`."""
        draft = IntentDraft(input_hash=call.input_hash, sender=sender, did_not_happen=did_not_happen)
        return await self._transport.one(ExternalCall, "POST", f"/v1/calls/{call.id}/intent", body=draft)

    async def outcome(
        self,
        call: ExternalCall,
        status: OutcomeStatus | str,
        *,
        result: Any = None,
        error: str | None = None,
        probed: bool = False,
    ) -> OutcomeReceipt:
        draft = OutcomeDraft(
            status=OutcomeStatus(status), result=result, error=error, attempt=call.attempt, probed=probed
        )
        return await self._transport.one(OutcomeReceipt, "POST", f"/v1/calls/{call.id}/outcome", body=draft)


@dataclass(frozen=True, slots=True)
class ExternalSession:
    """The session of an agent that runs here and asks there."""

    session: Session
    _calls: Calls

    @property
    def id(self) -> UUID:
        return self.session.id

    async def authorize(
        self, tool: str, arguments: dict[str, Any] | None = None, **more: Any
    ) -> ExternalCall:
        """``more`` are the fields of `CallDraft`: risk, key, on_uncertain, dispatch …"""
        return await self._calls.authorize(self.id, CallDraft(tool=tool, arguments=arguments or {}, **more))

    async def resolve(
        self, goal: str | None = None, action: str | None = None, arguments: dict[str, Any] | None = None, **more: Any
    ) -> Resolution:  # fmt: skip
        """What may be done now. ``more`` are the other fields of `ResolutionRequest`: request, risk, ttl_seconds."""
        request = ResolutionRequest(goal=goal, action=action, arguments=arguments or {}, **more)
        return await self._resolutions.resolve(self.id, request)

    async def execute(
        self, resolution: Resolution, tool: str, arguments: dict[str, Any] | None = None, **more: Any
    ) -> ExternalCall:
        """Begin a call that the resolution covers."""
        draft = CallDraft(tool=tool, arguments=arguments or {}, **more)
        return await self._resolutions.execute(resolution.id, draft)

    async def report(
        self,
        resolution: Resolution,
        call: ExternalCall,
        status: OutcomeStatus | str,
        *,
        result: Any = None,
        error: str | None = None,
    ) -> OutcomeReceipt:
        return await self._resolutions.report(resolution.id, call, status, result=result, error=error)

    async def answer(self, gate: str, answers: dict[str, Any], *, call: str | None = None) -> AnswerReceipt:
        return await self._resolutions.answer(self.id, gate, answers, call=call)

    async def permissions(self) -> Permissions:
        return await self._resolutions.permissions(self.id)

    @property
    def _resolutions(self) -> Resolutions:
        return Resolutions(self._calls._transport)

    async def complete(self, result: dict[str, Any] | None = None) -> Session:
        return await self._end("complete", Ending(result=result))

    async def fail(self, error: str | None = None) -> Session:
        return await self._end("fail", Ending(error=error))

    async def _end(self, how: str, ending: Ending) -> Session:
        return await self._calls._transport.one(Session, "POST", f"/v1/sessions/{self.id}/{how}", body=ending)
