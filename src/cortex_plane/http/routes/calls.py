from __future__ import annotations

from typing import Annotated
from uuid import UUID

from fastapi import APIRouter, Query, Request
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from cortex_plane.calls.model import (
    MAX_WAIT,
    CallDraft,
    CallShown,
    Ending,
    ExternalCall,
    IntentDraft,
    OutcomeDraft,
    OutcomeReceipt,
)
from cortex_plane.calls.verbs import calls, external, outcomes
from cortex_plane.http.exchange import Caller, Db, Listing, ListQuery, reply, reply_page, route
from cortex_plane.http.in_flight import leave
from cortex_plane.http.streams import OpenStreams
from cortex_plane.http.waiting import decided
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.kernel.fields import MAX_BODY_BYTES
from cortex_plane.kernel.pages import decode_position
from cortex_plane.sessions.model.sessions import Session

router = APIRouter(tags=["calls"])


class CallQuery(ListQuery):
    session_id: UUID | None = None
    status: CallStatus | None = None


class WaitQuery(BaseModel):
    model_config = ConfigDict(extra="forbid")
    wait: Annotated[
        float, Field(ge=0, le=MAX_WAIT, allow_inf_nan=False, description="Seconds to wait for a decision.")
    ] = 0


@router.post(
    "/sessions/{session_id}/calls",
    response_model=ExternalCall,
    status_code=201,
    **route(calls.authorize_call, body=MAX_BODY_BYTES),
)
async def authorize_call(db: Db, actor: Caller, session_id: UUID, draft: CallDraft) -> Response:
    """Ask before acting. Act only where the answer says `run`; its `next` says what to do otherwise."""
    return reply(await calls.authorize_call(db, actor, session_id, draft), 201)


@router.get("/calls", response_model=Listing[CallShown], **route(calls.list_calls))
async def list_calls(db: Db, actor: Caller, query: Annotated[CallQuery, Query()]) -> Response:
    """Calls of agents that run elsewhere, newest first."""
    page = await calls.list_calls(
        db,
        actor,
        decode_position("calls", query.cursor),
        query.limit,
        session_id=query.session_id,
        status=query.status,
    )
    return reply_page("calls", page)


@router.get("/calls/{call_id}", response_model=ExternalCall, **route(calls.get_call, 429))
async def get_call(
    request: Request, db: Db, actor: Caller, call_id: UUID, query: Annotated[WaitQuery, Query()]
) -> Response:
    """One call. With `wait` it is answered once there is something to do, or when that time is over."""
    if not query.wait:
        return reply(await calls.get_call(db, actor, call_id))

    async def read() -> tuple[ExternalCall, int]:
        return await calls.watch_call(db, actor, call_id)

    streams: OpenStreams = request.app.state.streams
    ended = streams.opened(actor)
    leave(request.scope)
    try:
        found = await decided(request.app.state.feed, actor.org_id, read, query.wait, request.is_disconnected)
    finally:
        ended()
    return reply(found)


@router.post("/calls/{call_id}/intent", response_model=ExternalCall, **route(calls.begin_call))
async def intend_call(db: Db, actor: Caller, call_id: UUID, draft: IntentDraft) -> Response:
    """Say that you begin. Act only where the answer says `run`, and before its `dispatch_before`."""
    return reply(await calls.begin_call(db, actor, call_id, draft))


@router.post(
    "/calls/{call_id}/outcome",
    response_model=OutcomeReceipt,
    **route(outcomes.settle_call, body=MAX_BODY_BYTES),
)
async def settle_call(db: Db, actor: Caller, call_id: UUID, draft: OutcomeDraft) -> Response:
    """Say what became of it. Told twice the same, nothing changes."""
    return reply(await outcomes.settle_call(db, actor, call_id, draft))


@router.post(
    "/sessions/{session_id}/complete", response_model=Session, **route(external.complete, body=MAX_BODY_BYTES)
)
async def complete_session(db: Db, actor: Caller, session_id: UUID, ending: Ending) -> Response:
    """The agent that runs elsewhere is done."""
    return reply(await external.complete(db, actor, session_id, ending))


@router.post(
    "/sessions/{session_id}/fail", response_model=Session, **route(external.fail, body=MAX_BODY_BYTES)
)
async def fail_session(db: Db, actor: Caller, session_id: UUID, ending: Ending) -> Response:
    """The agent that runs elsewhere gives up: nobody is asked any more."""
    return reply(await external.fail(db, actor, session_id, ending))
