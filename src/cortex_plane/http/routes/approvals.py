from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDetails,
    ApprovalStatus,
    Channel,
    Decision,
    DecisionReceipt,
    DelegationDraft,
    EffectAnswer,
)
from cortex_plane.approvals.verbs import approvals, decisions, settlements
from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, OnceOnly, reply, reply_page, route
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_position

router = APIRouter(tags=["approvals"])


class ApprovalQuery(ListQuery):
    status: ApprovalStatus | None = None
    job_id: UUID | None = None
    session_id: UUID | None = None


@router.get("/approvals", response_model=Listing[Approval], **route(approvals.list_approvals))
async def list_approvals(db: Db, actor: Caller, query: Annotated[ApprovalQuery, Query()]) -> Response:
    """Newest first. Whoever is not staff sees those of their own sessions, and those that name them."""
    page = await approvals.list_approvals(
        db,
        actor,
        decode_position("approvals", query.cursor),
        query.limit,
        status=query.status,
        job_id=query.job_id,
        session_id=query.session_id,
    )
    return reply_page("approvals", page)


@router.get("/approvals/{approval_id}", response_model=ApprovalDetails, **route(approvals.get_approval))
async def get_approval(db: Db, actor: Caller, approval_id: UUID) -> Response:
    """The whole card: the exact arguments, who may decide, and what happened to it so far."""
    return reply(await approvals.get_approval(db, actor, approval_id))


@router.post(
    "/approvals/{approval_id}/decide",
    response_model=DecisionReceipt,
    **route(decisions.decide, body=MAX_BODY_BYTES),
)
async def decide_approval(
    db: Db, actor: Caller, once: OnceOnly, approval_id: UUID, decision: Decision
) -> Response:
    """Approve or deny exactly what you saw: `version` and `input_hash` must be those of the card.

    With `arguments` the call is approved as you edited it. The first decision stands: the same one again answers
    `DUPLICATE`, another one is the error `approval_conflict`.
    """
    return reply(await decisions.decide(db, actor, approval_id, decision, Channel.API, once))


@router.post("/approvals/{approval_id}/delegate", response_model=Approval, **route(approvals.delegate))
async def delegate_approval(db: Db, actor: Caller, approval_id: UUID, draft: DelegationDraft) -> Response:
    """Hand your part in a request to somebody with the clearance for it. You decide no more; they may hand it on."""
    return reply(await approvals.delegate(db, actor, approval_id, draft))


@router.post(
    "/approvals/{approval_id}/answer",
    response_model=DecisionReceipt,
    **route(settlements.answer, body=MAX_BODY_BYTES),
)
async def answer_approval(db: Db, actor: Caller, approval_id: UUID, answer: EffectAnswer) -> Response:
    """For the card of an uncertain effect: it happened, it did not, or give the job up."""
    return reply(await settlements.answer(db, actor, approval_id, answer, Channel.API))
