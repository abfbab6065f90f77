"""The routes of approvals, bound to their verbs."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from cortex_plane.approvals import routes
from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, EffectAnswer
from cortex_plane.approvals.model.credentials import TokenDecision
from cortex_plane.approvals.verbs import approvals, credentials, decisions, settlements, standing_approvals
from cortex_plane.http.exchange import Binding, Exchange, answer, handle, pages, reply, throttled, whole
from cortex_plane.http.problems import problem
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.tenancy.model.access import Permission


async def decide_approval(
    exchange: Exchange, approval_id: UUID, decision: ApprovalDecision, once: IdempotencyKey | None
) -> Response:
    return reply(await decisions.decide(exchange.db, exchange.actor, approval_id, decision, Channel.API, once))


async def answer_approval(exchange: Exchange, approval_id: UUID, answer: EffectAnswer) -> Response:
    return reply(await settlements.answer(exchange.db, exchange.actor, approval_id, answer, Channel.API))


async def decide_by_token(exchange: Exchange, decision: TokenDecision) -> Response:
    return reply(await throttled(exchange, credentials.decide_by_token(exchange.db, decision)))


async def refuse_token_in_path(exchange: Exchange, _: str) -> Response:
    """The path is in logs by now, so its token is not read."""
    return problem(
        exchange.request,
        410,
        code="token_in_path",
        detail="A token in an address ends up in logs, so nothing was decided.",
        hint='Send it in the body: POST /v1/approvals/decide with {"token": "…", "decision": "approved"}.',
    )


BINDINGS: tuple[Binding, ...] = (
    pages(routes.LIST_APPROVALS, approvals.list_approvals, "approvals"),
    answer(routes.GET_APPROVAL, approvals.get_approval),
    handle(routes.DECIDE_APPROVAL, decisions.decide, decide_approval),
    answer(routes.DELEGATE_APPROVAL, approvals.delegate),
    handle(routes.ANSWER_APPROVAL, settlements.answer, answer_approval),
    handle(routes.DECIDE_BY_TOKEN, Permission.APPROVAL_DECIDE, decide_by_token),
    answer(routes.ROTATE_SIGNING_SECRET, credentials.rotate_secret),
    pages(routes.LIST_STANDING_APPROVALS, standing_approvals.list_page, "standing_approvals"),
    answer(routes.GET_STANDING_APPROVAL, standing_approvals.get),
    answer(routes.REVOKE_STANDING_APPROVAL, standing_approvals.revoke),
    whole(routes.LIST_DELEGATES, approvals.list_delegates),
    answer(routes.EXECUTE_REQUEST, settlements.execute),
    answer(routes.APPROVE_TOOL, settlements.approve_tool),
    handle(routes.APPROVE_BY_PATH, None, refuse_token_in_path),
    handle(routes.DENY_BY_PATH, None, refuse_token_in_path),
)
