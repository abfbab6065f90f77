"""Approvals, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDetails,
    ApprovalStatus,
    Choice,
    Decision,
    DecisionReceipt,
    DelegationDraft,
    EffectAnswer,
    StandingDraft,
)
from cortex_plane.approvals.model.credentials import TokenDecision
from cortex_plane.client.transport import Transport
from cortex_plane.proof.model import Receipt


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
        self,
        seen: Approval,
        *,
        reason: str | None = None,
        arguments: dict[str, Any] | None = None,
        standing: StandingDraft | None = None,
    ) -> DecisionReceipt:
        """Yes to exactly what ``seen`` shows; with ``arguments``, to the call as they edit it.

        With ``standing`` also to more calls of its tool in the session, as far as that says.
        """
        return await self.decide(
            seen.id,
            Decision(
                decision=Choice.APPROVED,
                version=seen.version,
                input_hash=seen.input_hash,
                reason=reason,
                arguments=arguments,
                standing=standing,
            ),
        )

    async def deny(self, seen: Approval, *, reason: str | None = None) -> DecisionReceipt:
        return await self.decide(
            seen.id,
            Decision(decision=Choice.DENIED, version=seen.version, input_hash=seen.input_hash, reason=reason),
        )

    async def delegate(self, id: UUID, draft: DelegationDraft) -> Approval:
        """Hand your part in it to somebody else."""
        return await self._transport.one(Approval, "POST", f"/v1/approvals/{id}/delegate", body=draft)

    async def receipt(self, id: UUID) -> Receipt:
        """The signed proof of its decision; docs/why/proof.md tells how to verify it without the plane."""
        return await self._transport.one(Receipt, "GET", f"/v1/approvals/{id}/receipt")

    async def answer(self, id: UUID, answer: EffectAnswer) -> DecisionReceipt:
        """About an uncertain effect: it happened, it did not, or give the job up."""
        return await self._transport.one(DecisionReceipt, "POST", f"/v1/approvals/{id}/answer", body=answer)

    async def decide_by_token(
        self, token: str, decision: Choice, *, reason: str | None = None
    ) -> DecisionReceipt:
        """As the person to whom the token was sent, about what their message showed. Needs no key."""
        given = TokenDecision(token=token, decision=decision, reason=reason)
        return await self._transport.one(DecisionReceipt, "POST", "/v1/approvals/decide", body=given)
