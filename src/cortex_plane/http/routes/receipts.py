from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, reply, route
from cortex_plane.proof.model import Receipt
from cortex_plane.proof.verbs import receipts

router = APIRouter(tags=["approvals"])


@router.get("/approvals/{approval_id}/receipt", response_model=Receipt, **route(receipts.get_receipt))
async def get_receipt(db: Db, actor: Caller, approval_id: UUID) -> Response:
    """The signed proof of the decision, which verifies without the plane; docs/why/proof.md describes it."""
    return reply(await receipts.get_receipt(db, actor, approval_id))
