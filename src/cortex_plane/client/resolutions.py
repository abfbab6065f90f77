"""Gates and resolutions, as the client asks for them on behalf of an agent that runs elsewhere."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from cortex_plane.calls.model import (
    AnswerDraft,
    AnswerReceipt,
    CallDraft,
    ExternalCall,
    OutcomeDraft,
    OutcomeReceipt,
    OutcomeStatus,
    Permissions,
    ReportDraft,
    Resolution,
    ResolutionRequest,
)
from cortex_plane.client.transport import Transport


class Resolutions:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def resolve(self, session_id: UUID, request: ResolutionRequest) -> Resolution:
        """What may be done now, and what must be known and answered first. Asking uses nothing up."""
        return await self._transport.one(
            Resolution, "POST", f"/v1/sessions/{session_id}/resolve", body=request
        )

    async def get(self, id: UUID) -> Resolution:
        return await self._transport.one(Resolution, "GET", f"/v1/resolutions/{id}")

    async def execute(self, id: UUID, draft: CallDraft) -> ExternalCall:
        """Begin a call that the resolution covers. Act only where the answer says `run`."""
        return await self._transport.one(ExternalCall, "POST", f"/v1/resolutions/{id}/execute", body=draft)

    async def report(
        self,
        id: UUID,
        call: ExternalCall,
        status: OutcomeStatus | str,
        *,
        result: Any = None,
        error: str | None = None,
    ) -> OutcomeReceipt:
        outcome = OutcomeDraft(status=OutcomeStatus(status), result=result, error=error, attempt=call.attempt)
        body = ReportDraft(call=call.id, outcome=outcome)
        return await self._transport.one(OutcomeReceipt, "POST", f"/v1/resolutions/{id}/report", body=body)

    async def answer(
        self, session_id: UUID, gate: str, answers: dict[str, Any], *, call: str | None = None
    ) -> AnswerReceipt:
        """Answer a gate that stops the session or one of its calls."""
        body = AnswerDraft(gate=gate, answers=answers, call=call)
        return await self._transport.one(
            AnswerReceipt, "POST", f"/v1/sessions/{session_id}/answers", body=body
        )

    async def permissions(self, session_id: UUID) -> Permissions:
        return await self._transport.one(Permissions, "GET", f"/v1/sessions/{session_id}/permissions")
