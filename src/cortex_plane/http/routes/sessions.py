from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Depends, Query
from starlette.responses import Response

from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.http.exchange import (
    Caller,
    Db,
    Listing,
    ListQuery,
    OnceOnly,
    Revision,
    metrics,
    reply,
    reply_numbered,
    reply_page,
    route,
)
from cortex_plane.http.metrics import Metrics
from cortex_plane.jobs.model.jobs import Pause, Resumption, SessionReceipt
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.fields import MAX_BODY_BYTES, Ref
from cortex_plane.kernel.pages import decode_number, decode_position
from cortex_plane.sessions.model.sessions import (
    IngestedMessage,
    Message,
    MessageDraft,
    Session,
    SessionChange,
    SessionDraft,
    SessionStatus,
    Termination,
)
from cortex_plane.sessions.verbs import sessions

router = APIRouter(tags=["sessions"])


class SessionQuery(ListQuery):
    status: SessionStatus | None = None
    agent: Ref | None = None
    member_id: UUID | None = None


@router.post(
    "/sessions",
    response_model=Session,
    status_code=201,
    **route(session_lifecycle.create, body=MAX_BODY_BYTES),
)
async def create_session(db: Db, actor: Caller, once: OnceOnly, draft: SessionDraft) -> Response:
    """Open a session from a program. A person's conversation opens by itself with the first message."""
    return reply(await session_lifecycle.create(db, actor, draft, once), 201)


@router.get("/sessions", response_model=Listing[Session], **route(sessions.list_sessions))
async def list_sessions(db: Db, actor: Caller, query: Annotated[SessionQuery, Query()]) -> Response:
    """Members and guests see their own sessions, everybody else those of the org."""
    page = await sessions.list_sessions(
        db,
        actor,
        decode_position("sessions", query.cursor),
        query.limit,
        status=query.status,
        agent=query.agent,
        member_id=query.member_id,
    )
    return reply_page("sessions", page)


@router.get("/sessions/{session_id}", response_model=Session, **route(sessions.get_session))
async def get_session(db: Db, actor: Caller, session_id: UUID) -> Response:
    return reply(await sessions.get_session(db, actor, session_id))


@router.patch(
    "/sessions/{session_id}", response_model=Session, **route(sessions.update_session, body=MAX_BODY_BYTES)
)
async def update_session(
    db: Db, actor: Caller, session_id: UUID, change: SessionChange, revision: Revision
) -> Response:
    return reply(await sessions.update_session(db, actor, session_id, change, revision))


@router.post("/sessions/{session_id}/terminate", response_model=Session, **route(session_lifecycle.terminate))
async def terminate_session(db: Db, actor: Caller, session_id: UUID, termination: Termination) -> Response:
    """End a session for good and cancel its open jobs."""
    return reply(await session_lifecycle.terminate(db, actor, session_id, termination))


@router.post("/sessions/{session_id}/pause", response_model=SessionReceipt, **route(steering.pause_session))
async def pause_session(db: Db, actor: Caller, session_id: UUID, pause: Pause) -> Response:
    """Hold a session: its open jobs, and whatever it is asked to do until it is resumed."""
    return reply(await steering.pause_session(db, actor, session_id, pause))


@router.post("/sessions/{session_id}/resume", response_model=SessionReceipt, **route(steering.resume_session))
async def resume_session(db: Db, actor: Caller, session_id: UUID, resumption: Resumption) -> Response:
    """Lift the hold of a session, and with it that of its jobs."""
    return reply(await steering.resume_session(db, actor, session_id, resumption))


@router.post(
    "/sessions/{session_id}/messages",
    response_model=IngestedMessage,
    status_code=201,
    **route(sessions.post_message, body=MAX_BODY_BYTES),
)
async def post_message(
    db: Db,
    actor: Caller,
    session_id: UUID,
    once: OnceOnly,
    draft: MessageDraft,
    counted: Annotated[Metrics, Depends(metrics)],
) -> Response:
    delivery = await sessions.post_message(db, actor, session_id, draft, once)
    if "job" in delivery.created:
        counted.jobs.add(1, {"tenant_id": str(actor.org_id)})
    return reply(delivery, 201)


@router.get(
    "/sessions/{session_id}/messages", response_model=Listing[Message], **route(sessions.list_messages)
)
async def list_messages(
    db: Db, actor: Caller, session_id: UUID, query: Annotated[ListQuery, Query()]
) -> Response:
    """In the order they were said."""
    above = decode_number("messages", query.cursor) or 0
    found = await sessions.list_messages(db, actor, session_id, above, query.limit + 1)
    return reply_numbered("messages", found, query.limit, lambda message: message.seq)
