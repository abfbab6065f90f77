from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict
from starlette.responses import Response

from cortex_plane.http.downloads import Download
from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, reply, reply_all, reply_numbered, route
from cortex_plane.kernel.pages import decode_number
from cortex_plane.proof.model import AuditRecord, AuditRoot, RootMade, SigningKey, Verification
from cortex_plane.proof.rules.exports import MEDIA_TYPE
from cortex_plane.proof.verbs import audit, receipts, roots

router = APIRouter(tags=["audit"])


class AuditQuery(ListQuery):
    session_id: UUID | None = None


class ExportQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    session_id: UUID | None = None


_EXPORT = route(audit.export_trail)
_EXPORT["responses"] |= {
    200: {
        "description": "One JSON object a line; docs/reference/audit.md describes them.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string"}}},
    }
}


@router.get("/audit", response_model=Listing[AuditRecord], **route(audit.list_entries))
async def list_audit(db: Db, actor: Caller, query: Annotated[AuditQuery, Query()]) -> Response:
    """The chain of a session, or without `session_id` the org's own."""
    above = decode_number("audit", query.cursor) or 0
    found = await audit.list_entries(db, actor, query.session_id, above, query.limit + 1)
    return reply_numbered("audit", found, query.limit, lambda entry: entry.seq)


@router.get("/audit/verification", response_model=Verification, **route(audit.verify))
async def verify_audit(db: Db, actor: Caller) -> Response:
    """Follow every chain and every signed root of the org; names the first bad entry of each, and the first bad root."""
    return reply(await audit.verify(db, actor))


@router.get("/audit/export", response_class=Response, **_EXPORT)
async def export_audit(db: Db, actor: Caller, query: Annotated[ExportQuery, Query()]) -> Response:
    """Every chain of the org, or that of one session, as a file that can be verified without the plane."""
    chunks = await audit.export_trail(db, actor, query.session_id)
    return Download(chunks, MEDIA_TYPE, "audit.ndjson")


@router.get("/audit/roots", response_model=Listing[AuditRoot], **route(roots.list_roots))
async def list_roots(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    """Signed roots over all chains, newest first."""
    found = await roots.list_roots(db, actor, decode_number("roots", query.cursor), query.limit + 1)
    return reply_numbered("roots", found, query.limit, lambda root: root.seq)


@router.post("/audit/roots", response_model=RootMade, **route(roots.make_root_now))
async def make_root(db: Db, actor: Caller) -> Response:
    """A root over everything so far, at once; the newest one where nothing was appended since."""
    return reply(await roots.make_root_now(db, actor))


@router.get("/audit/keys", response_model=Listing[SigningKey], **route(receipts.list_signing_keys))
async def list_signing_keys(db: Db, actor: Caller) -> Response:
    """The public keys that receipts and roots are signed with, oldest first. Retired ones stay: what they signed is valid."""
    return reply_all(await receipts.list_signing_keys(db, actor))


@router.post("/audit/keys", status_code=201, response_model=SigningKey, **route(receipts.rotate_signing_key))
async def rotate_signing_key(db: Db, actor: Caller) -> Response:
    """A new key signs from now on."""
    return reply(await receipts.rotate_signing_key(db, actor), 201)
