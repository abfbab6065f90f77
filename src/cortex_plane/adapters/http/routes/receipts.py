from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.adapters.http.exchange import Caller, Db, reply, route
from cortex_plane.domain.audit import Receipt
from cortex_plane.operations import receipts

router = APIRouter(tags=["approvals"])


@router.get("/approvals/{approval_id}/receipt", response_model=Receipt, **route(receipts.get))
async def get_receipt(db: Db, actor: Caller, approval_id: UUID) -> Response:
    """The signed proof of the decision, which verifies without the plane; docs/proof.md describes it."""
    return reply(await receipts.get(db, actor, approval_id))
