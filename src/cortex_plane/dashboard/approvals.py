"""The card of an approval, and the decisions on it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from starlette.responses import Response

from cortex_plane.agents.model.tools import ToolVersion
from cortex_plane.approvals.model import approvals as model
from cortex_plane.approvals.rules.authority import standing_obstacle
from cortex_plane.approvals.rules.decisions import refusal
from cortex_plane.approvals.verbs import approvals, decisions, settlements
from cortex_plane.dashboard import pages, text
from cortex_plane.dashboard.visits import Visit, find_member, parse_form, parse_number, signed_in
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical, unique
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.fields import MAX_BODY_BYTES, to_json
from cortex_plane.kernel.routes import PageRoutes
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Permission

ASKED_TWICE = frozenset({"high", "critical"})
"""The risks that are approved with a second press."""
SPANS = {3600: "1 hour", 8 * 3600: "8 hours", 24 * 3600: "1 day", 7 * 24 * 3600: "7 days"}
"""How long a standing approval may last, as the card offers it."""
_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_TICKS = {"yes": True, "no": False}


def card_context(details: model.ApprovalDetails, tool: ToolVersion | None, actor: Actor) -> dict[str, Any]:
    """What the templates of a card show."""
    approval = details.approval
    tree = text.tree(approval.arguments)
    own_vote = _own_vote(details, actor)
    is_call = approval.kind is model.ApprovalKind.CALL
    return {
        "details": details,
        "approval": approval,
        "tool": tool,
        "tree": tree,
        "lines": tree.count("\n") + 1,
        "raw": text.escaped_json(approval.arguments),
        "changes": edit_changes(approval),
        "may_resend": actor.may(Permission.DELIVERY_WRITE),
        "asked_twice": approval.risk in ASKED_TWICE,
        # The person who caused a call may always deny it, even where somebody else must approve it.
        "may_deny": approval.kind is not model.ApprovalKind.UNCERTAIN_EFFECT
        and refusal(approval, actor, model.Choice.DENIED) is None,
        # A vote that adds nothing can be repeated, once its voter has proven a channel.
        "voted": own_vote if own_vote is not None and own_vote.counts_with is None else None,
        "may_delegate": approval.may_decide and is_call and own_vote is None,
        "standing_spans": SPANS if standing_obstacle(approval) is None else {},
        "question": model.question_of(approval),
        "draft": {},
        "seen": seen_of(details),
        "now": details.now,
    }


def edit_changes(approval: model.Approval) -> list[text.Change]:
    is_edited = approval.original_arguments is not None
    return text.changes(approval.original_arguments, approval.arguments) if is_edited else []


def seen_of(details: model.ApprovalDetails) -> str:
    """Made from what is read anyway: a card is polled far more often than it is rendered."""
    approval = details.approval
    last = details.events[-1].created_at if details.events else None
    return pages.fingerprint(
        (approval.status, approval.version, approval.may_decide, len(details.events), last),
        (len(details.votes), len(details.delegations), approval.escalation_level),
        [(d.id, d.status, d.attempts, d.rendered_version == d.desired_version) for d in details.deliveries],
    )


def _own_vote(details: model.ApprovalDetails, actor: Actor) -> model.Vote | None:
    """The visitor's yes to this version. An answer about an uncertain effect may still be changed."""
    approval = details.approval
    if approval.kind is model.ApprovalKind.UNCERTAIN_EFFECT or approval.status is not model.ApprovalStatus.PENDING:
        return None
    own = (actor.user_account_id, approval.version)
    return next((vote for vote in details.votes if (vote.member_id, vote.version) == own), None)


router = PageRoutes()


def _id(visit: Visit) -> UUID:
    return visit.path_id("approval_id", "approval")


async def _read(visit: Visit, id: UUID) -> model.ApprovalDetails:
    return await approvals.get_approval(visit.db, visit.actor, id)


async def _full_card(visit: Visit, details: model.ApprovalDetails) -> dict[str, Any]:
    approval = details.approval
    tools = await workers.list_tools(visit.db, visit.actor) if visit.actor.may(Permission.TOOL_READ) else []
    version = (approval.tool_name, approval.tool_digest)
    card = card_context(details, next((t for t in tools if (t.name, t.digest) == version), None), visit.actor)
    delegates: list[model.Delegate] = []
    if card["may_delegate"]:
        delegates = await approvals.list_delegates(visit.db, visit.actor, approval_id=approval.id)
    next_level = None
    if approval.escalate_at is not None:
        next_level = await approvals.next_level(visit.db, visit.actor, approval.id)
    return {**card, "takers": delegates, "too_many_takers": len(delegates) == model.AT_MOST, "next_level": next_level}


async def show_card(visit: Visit, status: int = 200, notice: dict[str, str] | None = None) -> Response:
    details = await _read(visit, _id(visit))
    # What was typed into the form of an answer is still there where it was refused.
    context = {**await _full_card(visit, details), "draft": visit.form}
    return visit.page("approval.html", status, notice=notice, **context)


async def show_card_again(visit: Visit) -> Response:
    """The arguments never change while somebody reads them: a new version is announced and not shown."""
    details = await _read(visit, _id(visit))
    approval = details.approval
    read = visit.request.query_params.get("version", "")
    if approval.status is model.ApprovalStatus.PENDING and read != str(approval.version):
        if visit.request.query_params.get("told") == str(approval.version):
            return pages.unchanged()  # a screen reader announces it once
        answer = visit.page("approval_changed.html", approval=approval, now=details.now)
        answer.headers["HX-Retarget"] = "#notice"
        answer.headers["HX-Reswap"] = "innerHTML"
        return answer
    return visit.unchanged(seen_of(details)) or visit.page("approval_card.html", **await _full_card(visit, details))


async def decide(visit: Visit) -> Response:
    id, form = _id(visit), visit.form
    try:
        decision = await _decision(visit, id)
        question = await _ask_again(visit, id, decision)
        if question is not None:
            return question
        await decisions.decide(visit.db, visit.actor, id, decision, model.Channel.DASHBOARD)
    except Conflict as error:
        return await _show_what_happened(visit, id, form, error)
    except (InvalidInput, Forbidden) as error:
        if "arguments" in form:
            return await edit(visit, form["arguments"], error)
        if error.code == "answer_invalid":
            return await _show_refusal(visit, error)
        raise
    return pages.redirect(f"/approvals/{id}")


async def _decision(visit: Visit, id: UUID) -> model.ApprovalDecision:
    form = visit.form
    fields: dict[str, Any] = {
        "decision": form.get("decision", ""),
        "version": _number(form.get("version", "")),
        "input_hash": form.get("input_hash", ""),
        "reason": visit.text("reason"),
    }
    if form.get("decision") == model.Choice.RESPONDED:
        fields["answer"] = read_answer((await _read(visit, id)).approval, form)
    if "arguments" in form:
        fields["arguments"] = _arguments(form["arguments"])
    if form.get("standing") == "yes":
        calls = form.get("standing_calls", "").strip()
        fields["standing"] = {
            "same_arguments": form.get("standing_same") == "yes",
            "calls": _number(calls) if calls else None,
            "seconds": _number(form.get("standing_seconds", "")),
        }
    return parse_form(model.ApprovalDecision, fields)


def _number(text: str) -> int | str:
    number = parse_number(text)
    return text if number is None else number


async def _ask_again(visit: Visit, id: UUID, decision: model.ApprovalDecision) -> Response | None:
    """High risk is approved with a second press: on the page by its script, or here on a page of its own. A standing
    approval is always confirmed in words."""
    form = visit.form
    allows_more = decision.standing is not None and form.get("standing_confirmed") != "yes"
    if decision.decision is not model.Choice.APPROVED or (form.get("confirmed") == "yes" and not allows_more):
        return None
    details = await _read(visit, id)
    approval = details.approval
    if approval.status is not model.ApprovalStatus.PENDING or not (allows_more or approval.risk in ASKED_TWICE):
        return None
    arguments = approval.arguments if decision.arguments is None else decision.arguments
    return visit.page(
        "approval_confirm.html", decision=decision, approval=approval, tree=text.tree(arguments), now=details.now,
        standing=decision.standing,
    )  # fmt: skip


async def _show_what_happened(visit: Visit, id: UUID, form: dict[str, str], error: CortexError) -> Response:
    """Say why nothing was decided, above the card as it is now."""
    details = await _read(visit, id)
    notice = notice_of(details.approval, form, error)
    return visit.page("approval.html", 409, notice=notice, **await _full_card(visit, details))


def notice_of(approval: model.Approval, form: dict[str, str], error: CortexError) -> dict[str, str]:
    if approval.status is not model.ApprovalStatus.PENDING:
        who = approval.resolved_by_name or "The plane"
        return {
            "title": f"{who} was faster: this request is {approval.status}.",
            "text": "Your decision was not recorded.",
        }
    if form.get("input_hash") != approval.input_hash:
        return {
            "title": "The arguments changed while you were reading.",
            "text": "Nothing was decided. Below is what would run now; decide again.",
        }
    if form.get("version") != str(approval.version):
        return {
            "title": f"Another identical call joined: this now decides {approval.invocations} calls.",
            "text": "Nothing was decided. Look again, then decide.",
        }
    return {"title": error.message, "text": error.hint}


async def download_receipt(visit: Visit) -> Response:
    """The signed proof of a decision, as a file that verifies without the plane."""
    receipt = await receipts.get_receipt(visit.db, visit.actor, _id(visit))
    name = f"receipt-{receipt.approval_id}.json"
    headers = {**pages.HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(to_json(receipt), 200, headers, "application/json")


async def delegate(visit: Visit) -> Response:
    id = _id(visit)
    reason = visit.text("reason")
    try:
        to = await find_member(visit, visit.form.get("to", ""))
    except (InvalidInput, NotFound) as error:
        return await _show_refusal(visit, error)
    draft = parse_form(model.DelegationDraft, {"to": to, "reason": reason})
    try:
        await approvals.delegate(visit.db, visit.actor, id, draft)
    except (Conflict, Forbidden, InvalidInput, NotFound) as error:
        if error.code == "approval_not_found":
            raise
        return await _show_refusal(visit, error)
    return pages.redirect(f"/approvals/{id}")


async def _show_refusal(visit: Visit, error: CortexError) -> Response:
    return await show_card(visit, error.http_status, {"title": error.message, "text": error.hint})


async def edit(visit: Visit, draft: str | None = None, error: CortexError | None = None) -> Response:
    details = await _read(visit, _id(visit))
    approval = details.approval
    if approval.status is not model.ApprovalStatus.PENDING or not approval.may_decide:
        return pages.redirect(f"/approvals/{approval.id}")
    if draft is None:
        draft = text.escaped_json(approval.arguments, indent=2)
    status = 200 if error is None else 422
    return visit.page("approval_edit.html", status, draft=draft, error=error, approval=approval, now=details.now)


async def preview_edit(visit: Visit) -> Response:
    """What an edit would change, shown before it decides."""
    id = _id(visit)
    draft = visit.form.get("arguments", "")
    details = await _read(visit, id)
    try:
        arguments = _arguments(draft)
        canonical(arguments)
    except InvalidInput as error:
        return await edit(visit, draft, error)
    approval = details.approval
    if visit.form.get("version") != str(approval.version) or approval.status is not model.ApprovalStatus.PENDING:
        return await _show_what_happened(visit, id, visit.form, Conflict("It has changed in the meantime."))
    difference = text.changes(approval.arguments, arguments)
    if not difference:
        same = InvalidInput("Nothing is changed.", hint="Change a value, or go back and approve the call as it is.")
        return await edit(visit, draft, same)
    return visit.page(
        "approval_edit_confirm.html",
        tree=text.tree(arguments),
        edited_text=text.escaped_json(arguments),
        difference=difference,
        approval=approval,
        now=details.now,
    )


def _arguments(draft: str) -> dict[str, Any]:
    """Strict JSON: a key that occurs twice would hide one of its values."""
    try:
        arguments = json.loads(draft, object_pairs_hook=unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not valid JSON: {error}.", hint="Correct it, or start over.") from None
    if not isinstance(arguments, dict):
        raise InvalidInput("Arguments are a JSON object.", hint='Write them between braces: {"name": "value"}.')
    return arguments


def _no_constant(word: str) -> Any:
    raise InvalidInput(f"{word} is not a JSON number.", hint="Write a number, or null.")


async def answer(visit: Visit) -> Response:
    id, form = _id(visit), visit.form
    fields = {"verdict": form.get("verdict", ""), "note": form.get("note", "").strip() or None}
    verdict = parse_form(model.EffectAnswer, fields)
    try:
        await settlements.answer(visit.db, visit.actor, id, verdict, model.Channel.DASHBOARD)
    except Conflict as error:
        return await _show_what_happened(visit, id, form, error)
    except Forbidden as error:
        return await _show_refusal(visit, error)
    return pages.redirect(f"/approvals/{id}")


router.add("/approvals/{approval_id}", signed_in(show_card), "GET")
router.add("/approvals/{approval_id}/live", signed_in(show_card_again, by_itself=True), "GET")
# The form of an edit carries all arguments.
router.add("/approvals/{approval_id}/decide", signed_in(decide), "POST", max_body=MAX_BODY_BYTES)
router.add("/approvals/{approval_id}/receipt", signed_in(download_receipt), "GET")
router.add("/approvals/{approval_id}/delegate", signed_in(delegate), "POST")
router.add("/approvals/{approval_id}/edit", signed_in(edit), "GET")
router.add("/approvals/{approval_id}/edit", signed_in(preview_edit), "POST", max_body=MAX_BODY_BYTES)
router.add("/approvals/{approval_id}/answer", signed_in(answer), "POST")


def read_answer(approval: model.Approval, form: Mapping[str, str]) -> Any:
    """The answer in a form whose fields the macro `answer_fields` names. What is not a number stays text, and its check refuses it."""
    question = model.question_of(approval)
    if question is None or question.schema is None:
        return _plain(form.get("answer", ""))
    texts = [(field, _plain(form.get(f"field.{field.name}", ""))) for field in question.fields]
    return {field.name: _value(field.type, text) for field, text in texts if text}


def _plain(text: str) -> str:
    return text.replace("\r\n", "\n").strip()


def _value(kind: str, text: str) -> Any:
    if kind == "boolean":
        return _TICKS.get(text, text)
    if kind in ("integer", "number") and _INTEGER.fullmatch(text):
        return int(text)
    if kind == "number":
        try:
            number = float(text)
        except ValueError:
            return text
        return number if math.isfinite(number) else text
    return text
