"""The card of an approval, and the decisions on it."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import pydantic
from fastapi import APIRouter
from starlette.responses import RedirectResponse, Response

from cortex_plane.agents.model.tools import ToolVersion
from cortex_plane.approvals.model.approvals import (
    AT_MOST,
    NEVER,
    Approval,
    ApprovalDetails,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    Decision,
    Delegate,
    DelegationDraft,
    EffectAnswer,
    Vote,
)
from cortex_plane.approvals.rules.deciders import refusal
from cortex_plane.approvals.verbs import approvals, decisions, settlements
from cortex_plane.dashboard import pages, text
from cortex_plane.dashboard.visits import Visit, find_member, signed_in
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical, unique
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound
from cortex_plane.kernel.fields import BODY_LIMIT, MAX_BODY_BYTES, parse, to_json
from cortex_plane.policies.model.policies import Approvers
from cortex_plane.proof.verbs import receipts
from cortex_plane.tenancy.model.access import Actor, Permission

ASKED_TWICE = frozenset({"high", "critical"})
"""The risks that are approved with a second press."""
SPANS = {3600: "1 hour", 8 * 3600: "8 hours", 24 * 3600: "1 day", 7 * 24 * 3600: "7 days"}
"""How long a standing approval may last, as the card offers it."""


def card_context(details: ApprovalDetails, tool: ToolVersion | None, actor: Actor) -> dict[str, Any]:
    """What the templates of a card show."""
    approval = details.approval
    edited = approval.original_arguments is not None
    tree = text.tree(approval.arguments)
    voted = _own_vote(details, actor)
    return {
        "details": details,
        "approval": approval,
        "tool": tool,
        "tree": tree,
        "lines": tree.count("\n") + 1,
        "raw": text.escaped_json(approval.arguments),
        "changes": text.changes(approval.original_arguments, approval.arguments) if edited else [],
        "may_resend": actor.may(Permission.DELIVERY_WRITE),
        "asked_twice": approval.risk in ASKED_TWICE,
        "may_deny": _may_deny(approval, actor),
        # What adds nothing can be said again, by whoever has proven a channel since.
        "voted": voted if voted is not None and voted.counts_with is None else None,
        "may_delegate": approval.may_decide and approval.kind is ApprovalKind.CALL and voted is None,
        "standing_spans": SPANS if _offers_standing(approval) else {},
        "seen": seen_of(details),
        "now": details.now,
    }


def seen_of(details: ApprovalDetails) -> str:
    """From what is read anyway: whether a card changed is asked far more often than it is shown."""
    approval = details.approval
    last = details.events[-1].created_at if details.events else None
    return pages.fingerprint(
        (approval.status, approval.version, approval.may_decide, len(details.events), last),
        (len(details.votes), len(details.delegations), approval.escalation_level),
        [(d.id, d.status, d.attempts, d.rendered_version == d.desired_version) for d in details.deliveries],
    )


def _own_vote(details: ApprovalDetails, actor: Actor) -> Vote | None:
    """A yes that was given. An answer about an uncertain effect may still become another one."""
    if details.approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return None
    return next(
        (
            vote
            for vote in details.votes
            if vote.member_id == actor.user_account_id
            and vote.version == details.approval.version
            and details.approval.status is ApprovalStatus.PENDING
        ),
        None,
    )


def _offers_standing(approval: Approval) -> bool:
    """Whether its policy lets one person say yes to more than this call; the verb has the last word."""
    one = approval.quorum.votes == 1 and sum(needed.votes for needed in approval.quorum.roles) <= 1
    return approval.standing and one and approval.template not in NEVER and approval.tool_digest is not None


def _may_deny(approval: Approval, actor: Actor) -> bool:
    """Whoever asked for a thing may always say no to it, also where somebody else must say yes."""
    if approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return False
    return refusal(approval, actor, Choice.DENIED) is None


router = APIRouter()


def _id(visit: Visit) -> UUID:
    try:
        return UUID(visit.request.path_params["approval_id"])
    except ValueError:
        raise NotFound("There is no such approval.", code="approval_not_found") from None


async def _full_card(visit: Visit, details: ApprovalDetails) -> dict[str, Any]:
    shown = card_context(details, await _tool(visit, details.approval), visit.actor)
    takers: list[Delegate] = []
    if shown["may_delegate"]:
        takers = await approvals.list_delegates(visit.db, visit.actor, approval_id=details.approval.id)
    return {**shown, "takers": takers, "too_many_takers": len(takers) == AT_MOST} | {
        "next_level": await _next_level(visit, details.approval)
    }


async def _next_level(visit: Visit, approval: Approval) -> Approvers | None:
    if approval.escalate_at is None:
        return None
    return await approvals.next_level(visit.db, visit.actor, approval.id)


async def _tool(visit: Visit, approval: Approval) -> ToolVersion | None:
    """What the tool says of itself, in the very version that was asked for."""
    if not visit.actor.may(Permission.TOOL_READ):
        return None
    known = await workers.list_tools(visit.db, visit.actor)
    return next((t for t in known if t.name == approval.tool_name and t.digest == approval.tool_digest), None)


async def show_card(visit: Visit) -> Response:
    details = await approvals.get_approval(visit.db, visit.actor, _id(visit))
    return visit.page("approval.html", notice=None, **await _full_card(visit, details))


async def show_card_again(visit: Visit) -> Response:
    """While somebody reads, the arguments never change under their eyes: a new version is announced and not shown."""
    details = await approvals.get_approval(visit.db, visit.actor, _id(visit))
    approval = details.approval
    read = visit.request.query_params.get("version", "")
    if approval.status is ApprovalStatus.PENDING and read != str(approval.version):
        if visit.request.query_params.get("told") == str(approval.version):
            return pages.unchanged()  # whoever listens to the page need not hear it again
        answer = visit.page("approval_changed.html", approval=approval, now=details.now)
        answer.headers["HX-Retarget"] = "#notice"
        answer.headers["HX-Reswap"] = "innerHTML"
        return answer
    unchanged = visit.unchanged(seen_of(details))
    return unchanged or visit.page("approval_card.html", **await _full_card(visit, details))


async def decide(visit: Visit) -> Response:
    id, form = _id(visit), visit.form
    try:
        decision = _decision(form)
        if await _needs_confirmation(visit, id, decision):
            return await _ask_again(visit, id, decision)
        await decisions.decide(visit.db, visit.actor, id, decision, Channel.DASHBOARD)
    except Conflict as error:
        return await _show_what_happened(visit, id, form, error)
    except (InvalidInput, Forbidden) as error:
        if "arguments" in form:
            return await _edit_page(visit, id, form["arguments"], error)
        raise
    return RedirectResponse(f"/approvals/{id}", 303, pages.HEADERS)


def _decision(form: dict[str, str]) -> Decision:
    given: dict[str, Any] = {
        "decision": form.get("decision", ""),
        "version": _number(form.get("version", "")),
        "input_hash": form.get("input_hash", ""),
        "reason": form.get("reason", "").replace("\r\n", "\n").strip() or None,
    }
    if "arguments" in form:
        given["arguments"] = _arguments(form["arguments"])
    if form.get("standing") == "yes":
        given["standing"] = _standing(form)
    try:
        return parse(Decision, given)
    except pydantic.ValidationError as error:
        raise _unreadable(error) from None


def _standing(form: dict[str, str]) -> dict[str, Any]:
    calls = form.get("standing_calls", "").strip()
    return {
        "same_arguments": form.get("standing_same") == "yes",
        "calls": _number(calls) if calls else None,
        "seconds": _number(form.get("standing_seconds", "")),
    }


def _number(text: str) -> int | str:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else text


def _unreadable(error: pydantic.ValidationError) -> InvalidInput:
    first = error.errors()[0]
    where = ".".join(str(part) for part in first["loc"]) or "form"
    return InvalidInput(f"`{where}`: {first['msg']}.", hint="Correct it and try again.", field=where)


async def _needs_confirmation(visit: Visit, id: UUID, decision: Decision) -> bool:
    """High risk is approved with a second press: on the page by its script, or here on a page of its own. Whoever allows
    more than one call always reads that in words first."""
    form = visit.form
    allows_more = decision.standing is not None and form.get("standing_confirmed") != "yes"
    if decision.decision is not Choice.APPROVED or (form.get("confirmed") == "yes" and not allows_more):
        return False
    approval = (await approvals.get_approval(visit.db, visit.actor, id)).approval
    return approval.status is ApprovalStatus.PENDING and (allows_more or approval.risk in ASKED_TWICE)


async def _ask_again(visit: Visit, id: UUID, decision: Decision) -> Response:
    details = await approvals.get_approval(visit.db, visit.actor, id)
    approval = details.approval
    shown = approval.arguments if decision.arguments is None else decision.arguments
    return visit.page(
        "approval_confirm.html", decision=decision, approval=approval, tree=text.tree(shown), now=details.now,
        standing=decision.standing,
    )  # fmt: skip


async def _show_what_happened(visit: Visit, id: UUID, form: dict[str, str], error: CortexError) -> Response:
    """Nothing was decided by this press: say why, above the card as it is now."""
    details = await approvals.get_approval(visit.db, visit.actor, id)
    notice = notice_of(details.approval, form, error)
    return visit.page("approval.html", 409, notice=notice, **await _full_card(visit, details))


def notice_of(approval: Approval, form: dict[str, str], error: CortexError) -> dict[str, str]:
    if approval.status is not ApprovalStatus.PENDING:
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
    made = await receipts.get_receipt(visit.db, visit.actor, _id(visit))
    name = f"receipt-{made.approval_id}.json"
    headers = {**pages.HEADERS, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(to_json(made), 200, headers, "application/json")


# Handing it on -------------------------------------------------------------------------------------------------------


async def delegate(visit: Visit) -> Response:
    id, form = _id(visit), visit.form
    try:
        given = {
            "to": await find_member(visit, form.get("to", "")),
            "reason": form.get("reason", "").replace("\r\n", "\n").strip() or None,
        }
        await approvals.delegate(visit.db, visit.actor, id, parse(DelegationDraft, given))
    except pydantic.ValidationError as error:
        raise _unreadable(error) from None
    except (Conflict, Forbidden, InvalidInput, NotFound) as error:
        if error.code == "approval_not_found":
            raise
        return await _show_refusal(visit, id, error)
    return RedirectResponse(f"/approvals/{id}", 303, pages.HEADERS)


async def _show_refusal(visit: Visit, id: UUID, error: CortexError) -> Response:
    details = await approvals.get_approval(visit.db, visit.actor, id)
    notice = {"title": error.message, "text": error.hint}
    return visit.page("approval.html", error.http_status, notice=notice, **await _full_card(visit, details))


# Editing -------------------------------------------------------------------------------------------------------------


async def edit(visit: Visit) -> Response:
    return await _edit_page(visit, _id(visit), None, None)


async def _edit_page(visit: Visit, id: UUID, draft: str | None, error: CortexError | None) -> Response:
    details = await approvals.get_approval(visit.db, visit.actor, id)
    approval = details.approval
    if approval.status is not ApprovalStatus.PENDING or not approval.may_decide:
        return RedirectResponse(f"/approvals/{id}", 303, pages.HEADERS)
    if draft is None:
        draft = text.escaped_json(approval.arguments, indent=2)
    status = 200 if error is None else 422
    return visit.page(
        "approval_edit.html", status, draft=draft, error=error, approval=approval, now=details.now
    )


async def preview_edit(visit: Visit) -> Response:
    """What an edit would change, shown before it decides."""
    id = _id(visit)
    draft = visit.form.get("arguments", "")
    details = await approvals.get_approval(visit.db, visit.actor, id)
    try:
        edited = _arguments(draft)
        canonical(edited)
    except InvalidInput as error:
        return await _edit_page(visit, id, draft, error)
    approval = details.approval
    stale = visit.form.get("version") != str(approval.version)
    if stale or approval.status is not ApprovalStatus.PENDING:
        refused = Conflict("It has changed in the meantime.")
        return await _show_what_happened(visit, id, visit.form, refused)
    difference = text.changes(approval.arguments, edited)
    if not difference:
        same = InvalidInput(
            "Nothing is changed.", hint="Change a value, or go back and approve the call as it is."
        )
        return await _edit_page(visit, id, draft, same)
    return visit.page(
        "approval_edit_confirm.html",
        tree=text.tree(edited),
        edited_text=text.escaped_json(edited),
        difference=difference,
        approval=approval,
        now=details.now,
    )


def _arguments(draft: str) -> dict[str, Any]:
    """Strict JSON: a name that stands there twice would hide one of its values."""
    try:
        made = json.loads(draft, object_pairs_hook=unique, parse_constant=_no_constant)
    except InvalidInput:
        raise
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"This is not valid JSON: {error}.", hint="Correct it, or start over.") from None
    if not isinstance(made, dict):
        raise InvalidInput(
            "Arguments are a JSON object.", hint='Write them between braces: {"name": "value"}.'
        )
    return made


def _no_constant(word: str) -> Any:
    raise InvalidInput(f"{word} is not a JSON number.", hint="Write a number, or null.")


# Uncertain effects ---------------------------------------------------------------------------------------------------


async def answer(visit: Visit) -> Response:
    id, form = _id(visit), visit.form
    given: dict[str, Any] = {"verdict": form.get("verdict", ""), "note": form.get("note", "").strip() or None}
    try:
        answered = parse(EffectAnswer, given)
    except pydantic.ValidationError as error:
        raise _unreadable(error) from None
    try:
        await settlements.answer(visit.db, visit.actor, id, answered, Channel.DASHBOARD)
    except Conflict as error:
        return await _show_what_happened(visit, id, form, error)
    except Forbidden as error:
        return await _show_refusal(visit, id, error)
    return RedirectResponse(f"/approvals/{id}", 303, pages.HEADERS)


router.add_api_route("/approvals/{approval_id}", signed_in(show_card), methods=["GET"])
router.add_api_route(
    "/approvals/{approval_id}/live", signed_in(show_card_again, by_itself=True), methods=["GET"]
)
# The form of an edit carries all arguments.
_WITH_ARGUMENTS = {BODY_LIMIT: MAX_BODY_BYTES}
router.add_api_route(
    "/approvals/{approval_id}/decide", signed_in(decide), methods=["POST"], openapi_extra=_WITH_ARGUMENTS
)
router.add_api_route("/approvals/{approval_id}/receipt", signed_in(download_receipt), methods=["GET"])
router.add_api_route("/approvals/{approval_id}/delegate", signed_in(delegate), methods=["POST"])
router.add_api_route("/approvals/{approval_id}/edit", signed_in(edit), methods=["GET"])
router.add_api_route(
    "/approvals/{approval_id}/edit", signed_in(preview_edit), methods=["POST"], openapi_extra=_WITH_ARGUMENTS
)
router.add_api_route("/approvals/{approval_id}/answer", signed_in(answer), methods=["POST"])
