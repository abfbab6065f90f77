from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, OnceOnly, reply, reply_page, route
from cortex_plane.kernel.pages import decode_position
from cortex_plane.tenancy.model.credentials import Key, KeyDraft, NewKey
from cortex_plane.tenancy.verbs import keys

router = APIRouter(tags=["keys"])


@router.post("/keys", response_model=NewKey, status_code=201, **route(keys.create_key))
async def create_key(db: Db, actor: Caller, once: OnceOnly, draft: KeyDraft) -> Response:
    """The secret is shown once; the plane keeps only its digest."""
    return reply(await keys.create_key(db, actor, draft, once), 201)


@router.get("/keys", response_model=Listing[Key], **route(keys.list_keys))
async def list_keys(db: Db, actor: Caller, query: Annotated[ListQuery, Query()]) -> Response:
    position = decode_position("keys", query.cursor)
    return reply_page("keys", await keys.list_keys(db, actor, position, query.limit))


@router.get("/keys/{key_id}", response_model=Key, **route(keys.get_key))
async def get_key(db: Db, actor: Caller, key_id: UUID) -> Response:
    return reply(await keys.get_key(db, actor, key_id))


@router.post("/keys/{key_id}/revoke", response_model=Key, **route(keys.revoke_key))
async def revoke_key(db: Db, actor: Caller, key_id: UUID) -> Response:
    """At once and for good, with the keys that were made with it and the browser sessions that came from them."""
    return reply(await keys.revoke_key(db, actor, key_id))
