from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from cortex_plane.adapters.http.cursors import decode_number
from cortex_plane.adapters.http.downloads import Download
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
from cortex_plane.domain.audit_exports import MEDIA_TYPE
from cortex_plane.operations import audit, audit_exports

router = APIRouter(tags=["audit"])


class AuditQuery(ListQuery):
    session_id: UUID | None = None


class ExportQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    session_id: UUID | None = None


_EXPORT = route(audit_exports.export)
_EXPORT["responses"] |= {
    200: {
        "description": "One JSON object a line; docs/audit.md describes them.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


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


@router.get("/audit/export", response_class=Response, **_EXPORT)
async def export_audit(db: Db, actor: Caller, query: Annotated[ExportQuery, Query()]) -> Response:
    """Every chain of the org, or that of one session, as a file that can be verified without the plane."""
    chunks = await audit_exports.export(db, actor, query.session_id)
    return Download(chunks, MEDIA_TYPE, "audit.ndjson")
