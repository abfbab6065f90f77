from __future__ import annotations

from uuid import UUID

from fastapi import APIRouter
from starlette.responses import Response

from cortex_plane.approvals.model.approvals import DecisionReceipt, ToolDecision
from cortex_plane.approvals.verbs import tool_requests
from cortex_plane.http.exchange import Caller, Db, OnceOnly, reply, route
from cortex_plane.jobs.model.jobs import Job

router = APIRouter(tags=["requests"])


@router.post(
    "/agent-requests/{request_id}/execute",
    response_model=Job,
    status_code=202,
    **route(tool_requests.execute),
)
async def execute_request(db: Db, actor: Caller, request_id: UUID) -> Response:
    """Spec 3's way to start or resume a request, which is a job. What waits for a decision is refused with 409."""
    return reply(await tool_requests.execute(db, actor, request_id), 202)


@router.post(
    "/approve-tool/{tool_call_id}", response_model=DecisionReceipt, **route(tool_requests.approve_tool)
)
async def approve_tool(
    db: Db, actor: Caller, once: OnceOnly, tool_call_id: UUID, decision: ToolDecision
) -> Response:
    """Spec 3's way to decide on a tool call: its `id` in the event `tool_call`. The request then goes on by itself."""
    return reply(await tool_requests.approve_tool(db, actor, tool_call_id, decision, once))
