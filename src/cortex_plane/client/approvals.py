"""Approvals, standing approvals, the messages about them, and the audit trail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any
from uuid import UUID

from cortex_plane.approvals import routes
from cortex_plane.approvals.model import approvals as model
from cortex_plane.approvals.model.credentials import TokenDecision
from cortex_plane.client.transport import Noun
from cortex_plane.jobs.routes import JOB_EVENTS
from cortex_plane.notify import routes as notify_routes
from cortex_plane.proof import model as proof
from cortex_plane.proof import routes as proof_routes
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus

WATCH_SECONDS = 2.0
_ASKS = ("approval_requested", "approval_joined", "approval_edited", "approval_delegated", "approval_escalated")


async def _every(seconds: float) -> AsyncGenerator[None, None]:
    while True:
        yield
        await asyncio.sleep(seconds)


class Approvals(Noun):
    async def get(self, id: UUID) -> model.ApprovalDetails:
        return await self._plane.call(routes.GET_APPROVAL, id)

    def list(
        self,
        limit: int | None = None,
        *,
        status: model.ApprovalStatus | None = None,
        job_id: UUID | None = None,
        session_id: UUID | None = None,
    ) -> AsyncIterator[model.Approval]:
        return self._plane.pages(
            routes.LIST_APPROVALS, limit=limit, status=status, job_id=job_id, session_id=session_id
        )

    def pending(self, job_id: UUID | None = None) -> AsyncIterator[model.Approval]:
        """What waits for somebody, newest first."""
        return self.list(status=model.ApprovalStatus.PENDING, job_id=job_id)

    async def watch(
        self, job_id: UUID | None = None, *, every: float = WATCH_SECONDS
    ) -> AsyncGenerator[model.Approval, None]:
        """What waits for you, each request once and again where its arguments changed: first what is there, then what comes. Of one job
        until it ends; else without end, with a look ``every`` so many seconds."""
        seen: set[tuple[UUID, int]] = set()
        async for _ in _every(every) if job_id is None else self._requests_of(job_id):
            async for card in self.pending(job_id):
                if card.may_decide and (card.id, card.version) not in seen:
                    seen.add((card.id, card.version))
                    yield card

    async def _requests_of(self, job_id: UUID) -> AsyncGenerator[None, None]:
        """Whenever somebody may have been asked about a job, until it ends."""
        yield
        async with aclosing(self._plane.events(JOB_EVENTS, job_id, after=0, on_lost=None)) as events:
            async for event in events:
                if event.type in _ASKS:
                    yield

    async def decide(
        self, id: UUID, decision: model.ApprovalDecision, *, idempotency_key: str | None = None
    ) -> model.DecisionReceipt:
        return await self._plane.call(routes.DECIDE_APPROVAL, id, body=decision, idempotency_key=idempotency_key)

    async def approve(
        self,
        seen: model.Approval,
        *,
        reason: str | None = None,
        arguments: dict[str, Any] | None = None,
        standing: model.StandingDraft | None = None,
    ) -> model.DecisionReceipt:
        """Yes to exactly what ``seen`` shows; with ``arguments``, to the call as they edit it.

        With ``standing`` also to more calls of its tool in the session, as far as that says.
        """
        fields = {"reason": reason, "arguments": arguments, "standing": standing}
        return await self._decide_as_seen(seen, model.Choice.APPROVED, **fields)

    async def deny(self, seen: model.Approval, *, reason: str | None = None) -> model.DecisionReceipt:
        return await self._decide_as_seen(seen, model.Choice.DENIED, reason=reason)

    async def respond(self, seen: model.Approval, answer: Any, *, reason: str | None = None) -> model.DecisionReceipt:
        """Nothing is sent: the agent gets ``answer`` as the result of its call. Words; to a question of `plane.ask_person` one of its
        choices, or an object that fits its schema."""
        return await self._decide_as_seen(seen, model.Choice.RESPONDED, reason=reason, answer=answer)

    async def _decide_as_seen(self, seen: model.Approval, choice: model.Choice, **fields: Any) -> model.DecisionReceipt:
        decision = model.ApprovalDecision(decision=choice, version=seen.version, input_hash=seen.input_hash, **fields)
        return await self.decide(seen.id, decision)

    async def delegate(self, id: UUID, draft: model.DelegationDraft) -> model.Approval:
        """Hand your part in it to somebody else."""
        return await self._plane.call(routes.DELEGATE_APPROVAL, id, body=draft)

    async def receipt(self, id: UUID) -> proof.Receipt:
        """The signed proof of its decision; docs/why/proof.md tells how to verify it without the plane."""
        return await self._plane.call(proof_routes.GET_RECEIPT, id)

    async def answer(self, id: UUID, answer: model.EffectAnswer) -> model.DecisionReceipt:
        """About an uncertain effect: it happened, it did not, or give the job up."""
        return await self._plane.call(routes.ANSWER_APPROVAL, id, body=answer)

    async def decide_by_token(
        self, token: str, decision: model.Choice, *, reason: str | None = None, answer: Any = None
    ) -> model.DecisionReceipt:
        """As the person to whom the token was sent, about what their message showed. Needs no key."""
        body = TokenDecision(token=token, decision=decision, reason=reason, answer=answer)
        return await self._plane.call(routes.DECIDE_BY_TOKEN, body=body)


class StandingApprovals(Noun):
    def list(
        self, limit: int | None = None, *, session_id: UUID | None = None, active: bool = False
    ) -> AsyncIterator[model.StandingApproval]:
        """Newest first; ``active`` leaves out what is revoked, over or used up."""
        return self._plane.pages(routes.LIST_STANDING_APPROVALS, limit=limit, session_id=session_id, active=active)

    async def get(self, id: UUID) -> model.StandingApproval:
        return await self._plane.call(routes.GET_STANDING_APPROVAL, id)

    async def revoke(self, id: UUID, *, reason: str | None = None) -> model.StandingApproval:
        """From now on it covers nothing."""
        return await self._plane.call(routes.REVOKE_STANDING_APPROVAL, id, body=model.Revocation(reason=reason))


class Deliveries(Noun):
    async def get(self, id: UUID) -> Delivery:
        return await self._plane.call(notify_routes.GET_DELIVERY, id)

    def list(
        self, limit: int | None = None, *, status: DeliveryStatus | None = None, approval_id: UUID | None = None
    ) -> AsyncIterator[Delivery]:
        """What was sent to whom, newest first."""
        return self._plane.pages(notify_routes.LIST_DELIVERIES, limit=limit, status=status, approval_id=approval_id)

    async def resend(self, id: UUID) -> Delivery:
        """What was given up is tried again, at once."""
        return await self._plane.call(notify_routes.RESEND_DELIVERY, id)


class Audit(Noun):
    def list(self, session_id: UUID | None = None, limit: int | None = None) -> AsyncIterator[proof.AuditRecord]:
        return self._plane.pages(proof_routes.LIST_AUDIT, limit=limit, session_id=session_id)

    def export(self, session_id: UUID | None = None) -> AsyncGenerator[bytes, None]:
        """The whole trail, or a session's chain, as a stream of bytes. docs/reference/audit.md describes the lines."""
        return self._plane.download(proof_routes.EXPORT_AUDIT, session_id=session_id)

    async def verify(self) -> proof.Verification:
        return await self._plane.call(proof_routes.VERIFY_AUDIT)

    def roots(self, limit: int | None = None) -> AsyncIterator[proof.AuditRoot]:
        """Signed roots over all chains, newest first."""
        return self._plane.pages(proof_routes.LIST_ROOTS, limit=limit)

    async def make_root(self) -> proof.RootMade:
        """A root over everything so far, at once."""
        return await self._plane.call(proof_routes.MAKE_ROOT)

    async def keys(self) -> Sequence[proof.SigningKey]:
        """The public keys that receipts and roots are signed with, oldest first."""
        return await self._plane.all(proof_routes.LIST_SIGNING_KEYS)

    async def rotate_key(self) -> proof.SigningKey:
        """A new key signs from now on; what the old one signed stays valid."""
        return await self._plane.call(proof_routes.ROTATE_SIGNING_KEY)
