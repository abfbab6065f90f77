from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.adapters.http.cursors import decode_number
from cortex_plane.adapters.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    reply,
    reply_numbered,
    route,
)
from cortex_plane.domain.audit import AuditRecord, Verification
from cortex_plane.operations import audit

router = APIRouter(tags=["audit"])


class AuditQuery(ListQuery):
    session_id: UUID | None = None


@router.get("/audit", response_model=Listing[AuditRecord], **route(audit.list_page))
async def list_audit(db: Db, actor: Caller, query: Annotated[AuditQuery, Query()]) -> Response:
    """The chain of a session, or without `session_id` the org's own."""
    above = decode_number("audit", query.cursor) or 0
    found = await audit.list_page(db, actor, query.session_id, above, query.limit + 1)
    return reply_numbered("audit", found, query.limit, lambda entry: entry.seq)


@router.get("/audit/verification", response_model=Verification, **route(audit.verify))
async def verify_audit(db: Db, actor: Caller) -> Response:
    """Follow every chain of the org and name the first bad entry of each."""
    return reply(await audit.verify(db, actor))
