"""Signed links, for people who are not logged in: GET shows the request and asks, POST decides.

Programs that fetch links ahead of a person, mail scanners and chats, also run forms and scripts. So nothing is decided
without the nonce of a page that was rendered for this link, and the pages carry no script at all.
"""

from __future__ import annotations

import contextlib
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pydantic
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from cortex_plane.approvals.model.approvals import (
    ApprovalDetails,
    ApprovalStatus,
    Choice,
    DecisionReceipt,
    RecordResult,
)
from cortex_plane.approvals.model.credentials import Visitor, read_confirmation
from cortex_plane.approvals.rules.deciders import refusal
from cortex_plane.approvals.verbs import approvals, credentials
from cortex_plane.dashboard import pages, text
from cortex_plane.dashboard.visits import MAX_FIELDS, require_same_origin, session_cookie
from cortex_plane.kernel.errors import (
    Conflict,
    CortexError,
    Forbidden,
    InvalidInput,
    NotFound,
    TooLarge,
    Unauthenticated,
)
from cortex_plane.kernel.fields import Note, adapter
from cortex_plane.kernel.shares import Throttle
from cortex_plane.notify.verbs import cards
from cortex_plane.policies.model.policies import quorum_said
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs import logins

router = APIRouter()

PATHS = (
    "/api/v1/approvals/callback/{channel}/{approval_id}",
    "/v1/approvals/callback/{channel}/{approval_id}",
)
MAX_FORM_BYTES = 8 * 1024
FORM = "application/x-www-form-urlencoded"
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; img-src 'self' data:; form-action 'self'; base-uri 'none';"
        " frame-ancestors 'none'"
    ),
    # The address is what decides: no other site is told of it. Not `no-referrer`: with it a browser would send
    # `Origin: null` with our own form.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Cookie",
    "X-Robots-Tag": "noindex, nofollow",
}
_DONE = {Choice.APPROVED: "Approved", Choice.DENIED: "Denied"}


# What is shown ----------------------------------------------------------------------------------------------------


def _page(name: str, status: int, **context: Any) -> Response:
    return HTMLResponse(pages.render(name, **context), status, HEADERS)


def _message(status: int, title: str, *lines: str, again: str | None = None, login: bool = False) -> Response:
    """A page that asks for nothing. ``again`` is the link itself, to come back to."""
    said = [line for line in lines if line]
    return _page("callback_message.html", status, title=title, lines=said, again=again, login=login)


def _own_address(found: Visitor, signature: str) -> str:
    """The link as it was read, and nothing that somebody appended to it. Relative: a proxy may know the plane elsewhere."""
    link = found.link
    query = {"t": link.deadline, "d": link.decision.value, "o": link.operator_id, "sig": signature}
    return "?" + urlencode(query)


async def _card(
    request: Request, found: Visitor, status: int = 200, notice: CortexError | None = None, reason: str = ""
) -> Response:
    """The request as it is now, with a form only where this person could still decide it.

    A link is forwarded, and kept in logs: without the login of its person it shows what their message may show, and where
    nothing is to be decided any more nothing but the outcome."""
    db = request.app.state.db
    whole = await approvals.get_approval(db, found.actor, found.link.approval_id)
    details = (
        whole if found.logged_in else cards.redacted(whole, await credentials.names_of_secrets(db, found))
    )
    approval = details.approval
    open_still = approval.status is ApprovalStatus.PENDING and not found.over and not _is_over(details)
    refused = refusal(approval, found.actor, found.link.decision) if open_still else None
    asks = open_still and refused is None
    shown, nonce = found.confirmation(approval.version, approval.input_hash)
    edited = approval.original_arguments is not None
    return _page(
        "callback.html",
        status,
        details=details,
        approval=approval,
        found=found,
        approves=found.link.decision is Choice.APPROVED,
        asks=asks,
        shows=open_still,
        hides=details != whole,
        edited=edited,
        over=approval.status is ApprovalStatus.PENDING and not open_still,
        refused=refused,
        notice=notice,
        reason=reason,
        address=_own_address(found, request.query_params["sig"]),
        shown=shown,
        nonce=nonce,
        quorum=quorum_said(approval.quorum),
        tree=text.tree(approval.arguments),
        raw=text.escaped_json(approval.arguments),
        changes=text.changes(approval.original_arguments, approval.arguments) if edited else [],
        now=details.now,
    )


def _is_over(details: ApprovalDetails) -> bool:
    deadline = details.approval.deadline
    return deadline is not None and details.now >= deadline


def _decided(found: Visitor, receipt: DecisionReceipt) -> Response:
    approval, choice = receipt.approval, found.link.decision
    again = receipt.result is RecordResult.DUPLICATE
    if approval.status is ApprovalStatus.PENDING:
        title = "You approved this already." if again else "Your approval counts."
        count = f"{approval.votes_for} so far; it needs {quorum_said(approval.quorum)}."
        return _message(200, title, f"{approval.tool_name}: {count}")
    by = f" by {approval.resolved_by_name}" if approval.resolved_by_name else ""
    title = f"Already {_DONE[choice].lower()}{by}." if again else f"{_DONE[choice]}."
    then = "The call is sent now." if choice is Choice.APPROVED else "The call is not sent."
    return _message(200, title, f"{approval.tool_name}: {then if not again else 'Nothing was changed.'}")


async def _not_decided(request: Request, found: Visitor, error: CortexError, reason: str) -> Response:
    status = error.http_status
    if error.code in ("approval_changed", "not_confirmed", "invalid_request"):
        return await _card(request, found, status, error, reason)
    if error.code in ("approval_conflict", "link_expired", "approval_expired"):
        return await _card(request, found, status, error)
    return _failed(error)


def _failed(error: CortexError, again: str | None = None) -> Response:
    if error.code == "login_required":
        return _message(error.http_status, "Log in first", error.message, again=again, login=True)
    if isinstance(error, NotFound):
        # They saw it once, or the link would not be theirs.
        return _message(404, "You have no part in this any more", "It is not yours to see or to decide now.")
    if error.code == "foreign_form":
        return _message(error.http_status, "Nothing was decided", error.message, error.hint, again=again)
    headline = {
        Unauthenticated: "This link does not work",
        Forbidden: "You may not decide this",
        Conflict: "Nothing was decided",
    }
    title = next((headline[kind] for kind in type(error).__mro__ if kind in headline), "That did not work")
    return _message(error.http_status, title, error.message, error.hint)


# Who comes --------------------------------------------------------------------------------------------------------


async def _visitor(request: Request, channel: str, approval_id: str) -> Visitor:
    throttle: Throttle = request.app.state.throttle
    query = request.query_params.multi_items()
    try:
        found = await credentials.visitor(
            request.app.state.db, channel, approval_id, query, await _session(request)
        )
    except Unauthenticated:
        throttle.failed(request.client.host if request.client else "")
        raise
    request.scope["state"]["actor"] = found.actor
    return found


async def _session(request: Request) -> Actor | None:
    """Who is logged in in this browser. Coming with a link is no visit of theirs."""
    secret = session_cookie(request)
    if secret:
        with contextlib.suppress(Unauthenticated):
            return await logins.authenticate_session(request.app.state.db, secret, touch=False)
    return None


async def _form(request: Request) -> dict[str, str]:
    """The fields of the page's form; of anything else not a byte more than the form could have."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise TooLarge(f"The form is larger than {MAX_FORM_BYTES} bytes.", hint="Give a shorter reason.")
    if kind != FORM and (kind or body):
        raise InvalidInput("This takes a form, and nothing else.", code="not_a_form", hint="Open the link.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise InvalidInput("This form cannot be read.", hint="Open the link again.") from error


def _reason(form: dict[str, str]) -> str | None:
    given = form.get("reason", "").replace("\r\n", "\n").strip()
    try:
        adapter(Note).validate_python(given)
    except pydantic.ValidationError as error:
        said = error.errors()[0]["msg"]
        raise InvalidInput(f"The reason: {said}.", hint="Correct it, then decide again.") from None
    return given or None


# Routes -----------------------------------------------------------------------------------------------------------


async def show(request: Request, channel: str, approval_id: str) -> Response:
    """Never decides, whoever asks and however often."""
    try:
        answer = await _card(request, await _visitor(request, channel, approval_id))
    except CortexError as error:
        answer = _failed(error, again="?" + request.url.query)
    return answer if request.method == "GET" else Response(None, answer.status_code, HEADERS)


async def decide(request: Request, channel: str, approval_id: str) -> Response:
    try:
        found = await _visitor(request, channel, approval_id)
        require_same_origin(request)
        form = await _form(request)
    except CortexError as error:
        return _failed(error, again="?" + request.url.query)
    try:
        shown = read_confirmation(form)
        receipt = await credentials.decide_by_link(request.app.state.db, found, shown, _reason(form))
    except CortexError as error:
        try:
            return await _not_decided(request, found, error, form.get("reason", ""))
        except CortexError as later:
            return _failed(later)
    return _decided(found, receipt)


for _path in PATHS:
    router.add_api_route(_path, show, methods=["GET", "HEAD"])
    router.add_api_route(_path, decide, methods=["POST"])
