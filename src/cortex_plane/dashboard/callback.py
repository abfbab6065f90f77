"""Signed links, for people who are not logged in: GET shows the request and asks, POST decides.

Programs that fetch links ahead of a person, mail scanners and chats, also run forms and scripts. So nothing is decided
without the nonce of a page that was rendered for this link, and the pages carry no script at all.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from urllib.parse import parse_qsl, urlencode

import pydantic
from starlette.requests import Request
from starlette.responses import Response

from cortex_plane.approvals.model.approvals import ApprovalStatus, Choice, DecisionReceipt, RecordResult, question_of
from cortex_plane.approvals.model.credentials import Visitor, read_confirmation
from cortex_plane.approvals.rules.decisions import refusal
from cortex_plane.approvals.verbs import approvals, credentials
from cortex_plane.dashboard import pages, text
from cortex_plane.dashboard.approvals import edit_changes, read_answer
from cortex_plane.dashboard.visits import MAX_FIELDS, person, require_same_origin
from cortex_plane.kernel import errors
from cortex_plane.kernel.errors import CortexError, InvalidInput, NotFound, Unauthenticated
from cortex_plane.kernel.fields import Note, adapter
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.notify.verbs import cards

router = PageRoutes()

PATHS = ("/api/v1/approvals/callback/{channel}/{approval_id}", "/v1/approvals/callback/{channel}/{approval_id}")
MAX_FORM_BYTES = 64 * 1024
FORM = "application/x-www-form-urlencoded"
NO_FORM: Mapping[str, str] = MappingProxyType({})
_DONE = {Choice.APPROVED: "Approved", Choice.DENIED: "Denied", Choice.RESPONDED: "Answered"}
_THEN = {
    Choice.APPROVED: "The call is sent now.",
    Choice.DENIED: "The call is not sent.",
    Choice.RESPONDED: "The agent goes on with your answer.",
}


def _message(status: int, title: str, *lines: str, again: str | None = None, login: bool = False) -> Response:
    """A page without a form. ``again`` is the link itself, to come back to."""
    texts = [line for line in lines if line]
    return pages.link_page("callback_message.html", status, title=title, lines=texts, again=again, login=login)


async def _card(
    request: Request, visitor: Visitor, status: int = 200, notice: CortexError | None = None,
    draft: Mapping[str, str] = NO_FORM,
) -> Response:  # fmt: skip
    """The request as it is now, with a form only where this person could still decide it.

    Links are forwarded and logged: without the login of its person a link shows what their message may show, and once
    nothing can be decided any more, only the outcome."""
    db = request.app.state.db
    whole = await approvals.get_approval(db, visitor.actor, visitor.link.approval_id)
    details = whole if visitor.logged_in else cards.redacted(whole, await credentials.names_of_secrets(db, visitor))
    approval = details.approval
    is_pending = approval.status is ApprovalStatus.PENDING
    is_late = visitor.over or (approval.deadline is not None and details.now >= approval.deadline)
    is_open = is_pending and not is_late
    obstacle = refusal(approval, visitor.actor, visitor.link.decision) if is_open else None
    # Whoever answers a question sees all of it.
    is_hidden = is_open and question_of(whole.approval) is not None and approval.arguments != whole.approval.arguments
    version, nonce = visitor.confirmation(approval.version, approval.input_hash)
    # The link without anything that was appended to it. Relative: a proxy may serve the plane elsewhere.
    link, signature = visitor.link, request.query_params["sig"]
    address = {"t": link.deadline, "d": link.decision.value, "o": link.operator_id, "sig": signature}
    return pages.link_page(
        "callback.html",
        status,
        details=details,
        approval=approval,
        found=visitor,
        approves=visitor.link.decision is Choice.APPROVED,
        responds=visitor.link.decision is Choice.RESPONDED,
        question=question_of(approval),
        asks=is_open and obstacle is None and not is_hidden,
        is_hidden=is_hidden,
        shows=is_open,
        hides=details != whole,
        edited=approval.original_arguments is not None,
        over=is_pending and not is_open,
        refused=obstacle,
        notice=notice,
        draft=draft,
        address="?" + urlencode(address),
        shown=version,
        nonce=nonce,
        quorum=approval.quorum.in_words(),
        tree=text.tree(approval.arguments),
        raw=text.escaped_json(approval.arguments),
        changes=edit_changes(approval),
        now=details.now,
    )


def _decision_page(visitor: Visitor, receipt: DecisionReceipt) -> Response:
    approval, choice = receipt.approval, visitor.link.decision
    again = receipt.result is RecordResult.DUPLICATE
    if approval.status is ApprovalStatus.PENDING:
        title = "You approved this already." if again else "Your approval counts."
        count = f"{approval.votes_for} so far; it needs {approval.quorum.in_words()}."
        return _message(200, title, f"{approval.tool_name}: {count}")
    by = f" by {approval.resolved_by_name}" if approval.resolved_by_name else ""
    title = f"Already {_DONE[choice].lower()}{by}." if again else f"{_DONE[choice]}."
    return _message(200, title, f"{approval.tool_name}: {'Nothing was changed.' if again else _THEN[choice]}")


async def _no_decision(request: Request, visitor: Visitor, error: CortexError, form: Mapping[str, str]) -> Response:
    if error.code in ("approval_changed", "not_confirmed", "invalid_request", "answer_invalid"):
        return await _card(request, visitor, error.http_status, error, form)
    if error.code in ("approval_conflict", "link_expired", "approval_expired"):
        return await _card(request, visitor, error.http_status, error)
    return _error_page(error)


def _error_page(error: CortexError, again: str | None = None) -> Response:
    if error.code == "login_required":
        return _message(error.http_status, "Log in first", error.message, again=again, login=True)
    if isinstance(error, NotFound):
        return _message(404, "You have no part in this any more", "It is not yours to see or to decide now.")
    if error.code == "foreign_form":
        return _message(error.http_status, "Nothing was decided", error.message, error.hint, again=again)
    headline = {
        Unauthenticated: "This link does not work",
        errors.Forbidden: "You may not decide this",
        errors.Conflict: "Nothing was decided",
    }
    title = next((headline[kind] for kind in type(error).__mro__ if kind in headline), "That did not work")
    return _message(error.http_status, title, error.message, error.hint)


async def _visitor(request: Request, channel: str, approval_id: str) -> Visitor:
    query = request.query_params.multi_items()
    try:
        visitor = await credentials.visitor(request.app.state.db, channel, approval_id, query, await person(request))
    except Unauthenticated:
        request.app.state.throttle.failed(request.client.host if request.client else "")
        raise
    request.scope["state"]["actor"] = visitor.actor
    return visitor


async def _form(request: Request) -> dict[str, str]:
    """The fields of the page's form, bounded in size."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    body = b""
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_FORM_BYTES:
            raise errors.TooLarge(
                f"The form is larger than {MAX_FORM_BYTES} bytes.", hint="Give a shorter reason or answer."
            )
    if kind != FORM and (kind or body):
        raise InvalidInput("This takes a form, and nothing else.", code="not_a_form", hint="Open the link.")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MAX_FIELDS))
    except ValueError as error:
        raise InvalidInput("This form cannot be read.", hint="Open the link again.") from error


def _reason(form: dict[str, str]) -> str | None:
    reason = form.get("reason", "").replace("\r\n", "\n").strip()
    try:
        adapter(Note).validate_python(reason)
    except pydantic.ValidationError as error:
        message = error.errors()[0]["msg"]
        raise InvalidInput(f"The reason: {message}.", hint="Correct it, then decide again.") from None
    return reason or None


async def show(request: Request, channel: str, approval_id: str) -> Response:
    """Never decides."""
    try:
        answer = await _card(request, await _visitor(request, channel, approval_id))
    except CortexError as error:
        answer = _error_page(error, again="?" + request.url.query)
    return answer if request.method == "GET" else Response(None, answer.status_code, pages.LINK_HEADERS)


async def decide(request: Request, channel: str, approval_id: str) -> Response:
    try:
        visitor = await _visitor(request, channel, approval_id)
        require_same_origin(request)
        form = await _form(request)
    except CortexError as error:
        return _error_page(error, again="?" + request.url.query)
    try:
        confirmation = read_confirmation(form)
        answer = None
        if visitor.link.decision is Choice.RESPONDED:
            details = await approvals.get_approval(request.app.state.db, visitor.actor, visitor.link.approval_id)
            answer = read_answer(details.approval, form)
        receipt = await credentials.decide_by_link(request.app.state.db, visitor, confirmation, _reason(form), answer)
    except CortexError as error:
        try:
            return await _no_decision(request, visitor, error, form)
        except CortexError as later:
            return _error_page(later)
    return _decision_page(visitor, receipt)


for _path in PATHS:
    router.add(_path, show, "GET", "HEAD")
    router.add(_path, decide, "POST")
