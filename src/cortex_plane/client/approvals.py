"""Approvals, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from cortex_plane.client.transport import Transport
from cortex_plane.domain.approvals import (
    Approval,
    ApprovalDetails,
    ApprovalStatus,
    Choice,
    Decision,
    DecisionReceipt,
    EffectAnswer,
)


class Approvals:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def get(self, id: UUID) -> ApprovalDetails:
        return await self._transport.one(ApprovalDetails, "GET", f"/v1/approvals/{id}")

    def list(
        self,
        limit: int | None = None,
        *,
        status: ApprovalStatus | None = None,
        job_id: UUID | None = None,
        session_id: UUID | None = None,
    ) -> AsyncIterator[Approval]:
        return self._transport.pages(
            Approval, "/v1/approvals", limit=limit, status=status, job_id=job_id, session_id=session_id
        )

    def pending(self, job_id: UUID | None = None) -> AsyncIterator[Approval]:
        """What waits for somebody, newest first."""
        return self.list(status=ApprovalStatus.PENDING, job_id=job_id)

    async def decide(
        self, id: UUID, decision: Decision, *, idempotency_key: str | None = None
    ) -> DecisionReceipt:
        return await self._transport.one(
            DecisionReceipt,
            "POST",
            f"/v1/approvals/{id}/decide",
            body=decision,
            idempotency_key=idempotency_key,
        )

    async def approve(
        self, seen: Approval, *, reason: str | None = None, arguments: dict[str, Any] | None = None
    ) -> DecisionReceipt:
        """Yes to exactly what ``seen`` shows; with ``arguments``, to the call as they edit it."""
        return await self.decide(
            seen.id,
            Decision(
                decision=Choice.APPROVED,
                version=seen.version,
                input_hash=seen.input_hash,
                reason=reason,
                arguments=arguments,
            ),
        )

    async def deny(self, seen: Approval, *, reason: str | None = None) -> DecisionReceipt:
        return await self.decide(
            seen.id,
            Decision(decision=Choice.DENIED, version=seen.version, input_hash=seen.input_hash, reason=reason),
        )

    async def answer(self, id: UUID, answer: EffectAnswer) -> DecisionReceipt:
        """About an uncertain effect: it happened, it did not, or give the job up."""
        return await self._transport.one(DecisionReceipt, "POST", f"/v1/approvals/{id}/answer", body=answer)
