"""Approvals, receipts, the audit trail and deliveries: routes and their verbs."""

from __future__ import annotations

from uuid import UUID

from starlette.responses import Response

from cortex_plane.approvals import routes
from cortex_plane.approvals.model.approvals import Channel, Choice
from cortex_plane.approvals.model.credentials import TokenAnswer, TokenDecision
from cortex_plane.approvals.verbs import approvals, credentials, decisions, settlements, standing_approvals
from cortex_plane.http.exchange import Binding, Exchange, answer, handle, reply, throttled
from cortex_plane.http.lists import ordered, pages, whole
from cortex_plane.http.problems import problem
from cortex_plane.http.streams import Download
from cortex_plane.notify import routes as notify_routes
from cortex_plane.notify.verbs import deliveries, inbound, webhooks
from cortex_plane.proof import routes as proof_routes
from cortex_plane.proof.verbs import audit, receipts
from cortex_plane.tenancy.model.access import Permission


async def decide_by_token(exchange: Exchange, decision: TokenDecision) -> Response:
    return reply(await throttled(exchange, credentials.decide_by_token(exchange.db, decision)))


async def approve_by_token(exchange: Exchange, answer: TokenAnswer) -> Response:
    return await decide_by_token(exchange, answer.deciding(Choice.APPROVED))


async def deny_by_token(exchange: Exchange, answer: TokenAnswer) -> Response:
    return await decide_by_token(exchange, answer.deciding(Choice.DENIED))


async def refuse_token_in_path(exchange: Exchange, _: str) -> Response:
    """The path is in logs by now, so its token is not read."""
    return problem(
        exchange.request,
        410,
        code="token_in_path",
        detail="A token in an address ends up in logs, so nothing was decided.",
        hint='Send it in the body: POST /v1/approvals/decide with {"token": "…", "decision": "approved"}.',
    )


async def export_audit(exchange: Exchange, session_id: UUID | None) -> Response:
    chunks = await audit.export_trail(exchange.db, exchange.actor, session_id)
    return Download(chunks, str(proof_routes.EXPORT_AUDIT.media_type), "audit.ndjson")


async def receive_event(exchange: Exchange, connection_id: UUID) -> Response:
    """The signature says who sends it, so there is no key, and nothing of the body is read before it."""
    request = exchange.request
    return reply(await webhooks.receive(exchange.db, connection_id, request.headers, await request.body()))


async def receive_channel_event(exchange: Exchange, connection_id: UUID) -> Response:
    """As the vendor's protocol wants it answered."""
    request = exchange.request
    received = inbound.VendorRequest(
        request.method, dict(request.query_params), dict(request.headers), await request.body()
    )
    vendor_reply = await inbound.receive(exchange.db, exchange.state.inbound, connection_id, received)
    return Response(vendor_reply.body, vendor_reply.status, media_type=vendor_reply.content_type)


DECLARATIONS = (proof_routes, routes, notify_routes)
BINDINGS: tuple[Binding, ...] = (
    answer(proof_routes.GET_RECEIPT, receipts.get_receipt),
    ordered(proof_routes.LIST_AUDIT, audit.list_entries, "audit", "above", lambda entry: entry.seq, start=0),
    answer(proof_routes.VERIFY_AUDIT, audit.verify),
    handle(proof_routes.EXPORT_AUDIT, audit.export_trail, export_audit),
    ordered(proof_routes.LIST_ROOTS, audit.list_roots, "roots", "below", lambda root: root.seq),
    answer(proof_routes.MAKE_ROOT, audit.make_root_now),
    whole(proof_routes.LIST_SIGNING_KEYS, receipts.list_signing_keys),
    answer(proof_routes.ROTATE_SIGNING_KEY, receipts.rotate_signing_key),
    pages(routes.LIST_APPROVALS, approvals.list_approvals, "approvals"),
    answer(routes.GET_APPROVAL, approvals.get_approval),
    answer(routes.DECIDE_APPROVAL, decisions.decide, channel=Channel.API),
    answer(routes.DELEGATE_APPROVAL, approvals.delegate),
    answer(routes.ANSWER_APPROVAL, settlements.answer, channel=Channel.API),
    handle(routes.DECIDE_BY_TOKEN, Permission.APPROVAL_DECIDE, decide_by_token),
    answer(routes.ROTATE_SIGNING_SECRET, credentials.rotate_secret),
    pages(routes.LIST_STANDING_APPROVALS, standing_approvals.list_page, "standing_approvals"),
    answer(routes.GET_STANDING_APPROVAL, standing_approvals.get),
    answer(routes.REVOKE_STANDING_APPROVAL, standing_approvals.revoke),
    whole(routes.LIST_DELEGATES, approvals.list_delegates),
    answer(routes.EXECUTE_REQUEST, settlements.execute),
    answer(routes.APPROVE_TOOL, settlements.approve_tool),
    handle(routes.APPROVE_BY_TOKEN, Permission.APPROVAL_DECIDE, approve_by_token),
    handle(routes.DENY_BY_TOKEN, Permission.APPROVAL_DECIDE, deny_by_token),
    handle(routes.APPROVE_BY_PATH, None, refuse_token_in_path),
    handle(routes.DENY_BY_PATH, None, refuse_token_in_path),
    answer(notify_routes.TEST_CONNECTION, webhooks.try_out, lambda exchange: {"channel": exchange.state.webhooks}),
    handle(notify_routes.RECEIVE_EVENT, None, receive_event),
    handle(notify_routes.RECEIVE_CHANNEL_EVENT, None, receive_channel_event),
    handle(notify_routes.CHECK_CHANNEL_ADDRESS, None, receive_channel_event),
    pages(notify_routes.LIST_DELIVERIES, deliveries.list_deliveries, "deliveries"),
    answer(notify_routes.GET_DELIVERY, deliveries.get_delivery),
    answer(notify_routes.RESEND_DELIVERY, deliveries.resend_delivery),
)
