from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.calls.model import (
    AnswerDraft,
    AnswerReceipt,
    CallDraft,
    ExternalCall,
    OutcomeReceipt,
    Permissions,
    ReportDraft,
    Resolution,
    ResolutionRequest,
)
from cortex_plane.calls.verbs import gate_answers, permissions, resolutions
from cortex_plane.http.exchange import Caller, Db, reply, route
from cortex_plane.kernel.fields import MAX_BODY_BYTES

router = APIRouter(tags=["resolutions"])


@router.post(
    "/sessions/{session_id}/resolve",
    response_model=Resolution,
    status_code=201,
    **route(resolutions.resolve, body=MAX_BODY_BYTES),
)
async def resolve_request(db: Db, actor: Caller, session_id: UUID, request: ResolutionRequest) -> Response:
    """What an agent that runs elsewhere may do now, and what it must know and answer first. Asking uses nothing up."""
    return reply(await resolutions.resolve(db, actor, session_id, request), 201)


@router.get("/resolutions/{resolution_id}", response_model=Resolution, **route(resolutions.get_resolution))
async def get_resolution(db: Db, actor: Caller, resolution_id: UUID) -> Response:
    """A resolution as it was given: for whoever asked for it, and for those who see the whole org."""
    return reply(await resolutions.get_resolution(db, actor, resolution_id))


@router.post(
    "/resolutions/{resolution_id}/execute",
    response_model=ExternalCall,
    status_code=201,
    **route(resolutions.execute_resolution, body=MAX_BODY_BYTES),
)
async def execute_resolution(db: Db, actor: Caller, resolution_id: UUID, draft: CallDraft) -> Response:
    """Begin a call that the resolution covers. Act only where the answer says `run`."""
    return reply(await resolutions.execute_resolution(db, actor, resolution_id, draft), 201)


@router.post(
    "/resolutions/{resolution_id}/report",
    response_model=OutcomeReceipt,
    **route(resolutions.report_resolution, body=MAX_BODY_BYTES),
)
async def report_resolution(db: Db, actor: Caller, resolution_id: UUID, draft: ReportDraft) -> Response:
    """Say what became of a call that was executed under it. Told twice the same, nothing changes."""
    return reply(await resolutions.report_resolution(db, actor, resolution_id, draft))


@router.post(
    "/sessions/{session_id}/answers",
    response_model=AnswerReceipt,
    **route(gate_answers.give_answers, body=MAX_BODY_BYTES),
)
async def answer_gate(db: Db, actor: Caller, session_id: UUID, draft: AnswerDraft) -> Response:
    """Answer a gate that stops an agent that runs elsewhere. A wrong answer is one try less."""
    return reply(await gate_answers.give_answers(db, actor, session_id, draft))


@router.get(
    "/sessions/{session_id}/permissions", response_model=Permissions, **route(permissions.get_permissions)
)
async def get_permissions(db: Db, actor: Caller, session_id: UUID) -> Response:
    """What is allowed in a session now, and which gate, capability or policy did it. Looking changes nothing."""
    return reply(await permissions.get_permissions(db, actor, session_id))
