from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    reply,
    reply_all,
    reply_page,
    route,
)
from cortex_plane.jobs.model.journal import Signal, SignalDraft, SignalKey, SignalName, SignalReceipt, Wait
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_position

router = APIRouter(tags=["signals"])


class SignalQuery(ListQuery):
    name: SignalName | None = None
    key: SignalKey | None = None


@router.post("/signals", response_model=SignalReceipt, **route(steering.send_signal, body=MAX_BODY_BYTES))
async def send_signal(db: Db, actor: Caller, once: OnceOnly, draft: SignalDraft) -> Response:
    """Wakes every job of the org that waits for this name and key, now or later.

    The first payload stays: the same again changes nothing, another one is a conflict.
    """
    return reply(await steering.send_signal(db, actor, draft, once))


@router.get("/signals", response_model=Listing[Signal], **route(steering.list_signals))
async def list_signals(db: Db, actor: Caller, query: Annotated[SignalQuery, Query()]) -> Response:
    """Newest first. Whoever is not staff sees what they sent themselves."""
    page = await steering.list_signals(
        db, actor, decode_position("signals", query.cursor), query.limit, name=query.name, key=query.key
    )
    return reply_page("signals", page)


@router.get("/jobs/{job_id}/waits", response_model=Listing[Wait], **route(steering.list_waits))
async def list_waits(db: Db, actor: Caller, job_id: UUID) -> Response:
    """The signals that a job waits for or waited for, oldest first, with what came."""
    return reply_all(await steering.list_waits(db, actor, job_id))
