"""Deciding with a token instead of a key, and the secret that signs links."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.approvals.model.approvals import DecisionReceipt
from cortex_plane.approvals.model.credentials import SecretRotation, SecretRotationDraft, TokenDecision
from cortex_plane.approvals.verbs import credentials
from cortex_plane.http.exchange import Caller, Db, reply, route
from cortex_plane.http.problems import documented, problem
from cortex_plane.kernel.errors import Unauthenticated
from cortex_plane.kernel.shares import Throttle
from cortex_plane.tenancy.model.access import Permission

router = APIRouter(tags=["approvals"])
spec_paths = APIRouter()


@router.post(
    "/approvals/decide",
    response_model=DecisionReceipt,
    openapi_extra={"x-permission": Permission.APPROVAL_DECIDE.value, "security": []},
    responses=documented(400, 401, 403, 404, 409, 412, 413, 422, 429, 503),
)
async def decide_by_token(request: Request, db: Db, decision: TokenDecision) -> Response:
    """Approve or deny with the token of a message: it names its person, and what that message showed them.

    Needs no key. The token goes into the body and nowhere else. Used again it answers with what was recorded: the same
    decision is `DUPLICATE`, another one the error `approval_conflict`.
    """
    throttle: Throttle = request.app.state.throttle
    try:
        return reply(await credentials.decide_by_token(db, decision))
    except Unauthenticated:
        throttle.failed(request.client.host if request.client else "")
        raise


@router.post("/org/signing-secret", response_model=SecretRotation, **route(credentials.rotate_secret))
async def rotate_signing_secret(db: Db, actor: Caller, rotation: SecretRotationDraft) -> Response:
    """Sign links with a new secret. Those that were sent work to their deadline, unless `forget` is true."""
    return reply(await credentials.rotate_secret(db, actor, rotation))


@spec_paths.post("/approvals/{token}/approve")
@spec_paths.post("/approvals/{token}/deny")
async def refuse_token_in_path(request: Request) -> Response:
    """Spec 1's paths. The path itself was in somebody's log by now, so it is not read."""
    return problem(
        request,
        410,
        code="token_in_path",
        detail="A token in an address ends up in logs, so nothing was decided.",
        hint='Send it in the body: POST /v1/approvals/decide with {"token": "…", "decision": "approved"}.',
    )
