"""Presses of buttons: a decision by the person who pressed, judged as at any other door.

The button names a notification and the version that its message showed; it gives no right. A modified client can press what no message
showed, so whether a button may do what it says is asked again, with the request as it is now.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass
from uuid import UUID

import orjson

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import (
    Approval,
    ApprovalDecision,
    ApprovalKind,
    ApprovalStatus,
    Channel,
    Choice,
    RecordResult,
)
from cortex_plane.approvals.model.credentials import ASKS_FOR_LOGIN
from cortex_plane.approvals.model.questions import form_of
from cortex_plane.approvals.rules import decisions as approval_rules
from cortex_plane.approvals.verbs import decisions
from cortex_plane.db.database import Database, Row
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, Stale
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.meters import meters
from cortex_plane.notify import rules as notify_rules
from cortex_plane.notify.model.channels import (
    Button,
    ButtonAction,
    ButtonPress,
    InboundEvent,
    ReasonInput,
    read_button,
    read_typed_button,
)
from cortex_plane.notify.model.notifications import Occasion, Undeliverable
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs import cards
from cortex_plane.notify.verbs.channel_events import StoredEvent, person_of, unknown_person
from cortex_plane.notify.verbs.channel_port import MoreChannel
from cortex_plane.notify.verbs.places import find_button
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.identities import VOUCHED_CHANNELS
from cortex_plane.tenancy.verbs.access import forgery_refusal

CHOICES = {
    ButtonAction.APPROVE: Choice.APPROVED,
    ButtonAction.DENY: Choice.DENIED,
    ButtonAction.RESPOND: Choice.RESPONDED,
}
SKIP = "/skip"
CHANGED = "The request has changed since this message: look at the new one."
NOT_FOR_YOU = "You are not one of those who see this request, so you cannot decide it."
UNKNOWN_BUTTON = "This button belongs to no request any more."
UNKNOWN_IN_PUBLIC = "I do not know who you are here. Link this account on the dashboard, under Your channels."
MAX_REASON = 2000


@dataclass(frozen=True, kw_only=True, slots=True)
class _CardButton:
    """A button with what stands behind it, as the person who pressed it sees it."""

    button: Button
    row: Row
    approval: Approval
    person: Actor

    @property
    def choice(self) -> Choice:
        return CHOICES[self.button.action]


async def press(db: Database, event: StoredEvent, press: ButtonPress) -> None:
    try:
        data = await _button_data(db, event, press)
        button = read_button(data)
        if button is not None and button.action is ButtonAction.MORE:
            await _show_more(db, event, press, data)
            return
    except (Forbidden, NotFound) as error:
        meters().called_back(event.channel.channel_type, "refused")
        await event.answer(press, _in_words(error, event), is_problem=True)
        return
    await _act(db, event, press, data, press.note)


async def _button_data(db: Database, event: StoredEvent, press: ButtonPress) -> str:
    """Of the button for which a typed command stands, or as it came."""
    typed = read_typed_button(press.data)
    if typed is None:
        return press.data
    async with db.transaction(event.org_id) as tx:
        return (await find_button(tx, event.target.connection_id, press.chat.id, typed)).data


async def _show_more(db: Database, event: StoredEvent, press: ButtonPress, data: str) -> None:
    """All of a request, as it is now, for somebody who may see it."""
    card_button = await _look_up(db, event, press, data)
    card = cards.card(
        cards.source_of(card_button.row, parse(Approval, card_button.row["approval"])),
        Occasion.REQUESTED,
        event.public_url,
    )
    card = cards.with_buttons(card, event.channel, card_button.button.notification_id)
    if isinstance(event.channel, MoreChannel):
        with contextlib.suppress(Undeliverable):  # they see it in the dashboard
            await event.channel.show_more(event.target, press, card)


async def reply(db: Database, event: StoredEvent, message: InboundEvent, data: str, words: str) -> bool:
    """Somebody wrote the words that a button asked for; False where they must write others. `/skip` leaves a reason out."""
    return await _act(db, event, message, data, "" if words.strip().lower() == SKIP else words)


async def _act(db: Database, event: StoredEvent, source: InboundEvent, data: str, note: str | None) -> bool:
    """False where more words are needed, or others."""
    kind = event.channel.channel_type
    try:
        card_button = await _look_up(db, event, source, data)
        _require_no_login(card_button)
        if _needs_words(event, card_button, note):
            await _ask(db, event, source, card_button)
            return False
        text, is_ours = await _decide(db, event, card_button, note)
    except Stale:
        meters().called_back(kind, "conflict")
        await _show_again(db, event, data)
        await event.answer(source, CHANGED, is_problem=True)
    except (InvalidInput, Forbidden, NotFound, Conflict) as error:
        if error.code == "retry":
            raise
        meters().called_back(kind, "conflict" if isinstance(error, Conflict) else "refused")
        if isinstance(error, Conflict):
            await _show_again(db, event, data)  # a copy with live buttons must not stay
        await event.answer(source, _in_words(error, event), is_problem=True)
        return not isinstance(error, InvalidInput)
    else:
        await event.answer(source, text, is_problem=not is_ours)
    return True


def _in_words(error: CortexError, event: StoredEvent) -> str:
    if error.code == "sender_unknown" and event.channel.channel_type in VOUCHED_CHANNELS:
        return UNKNOWN_IN_PUBLIC
    if error.code in ("login_required", "not_shown_whole"):
        return f"{error.message} Open it in the dashboard: {event.public_url}/approvals"
    return error.message


async def _look_up(db: Database, event: StoredEvent, source: InboundEvent, data: str) -> _CardButton:
    button = read_button(data)
    if button is None:
        raise NotFound(UNKNOWN_BUTTON, code="button_unknown")
    async with forgery_refusal(db, unknown_person), db.transaction(event.org_id) as tx:
        row = await tx.row(queries.get_card_source, button.notification_id, event.target.connection_id)
        if row is None:
            raise NotFound(UNKNOWN_BUTTON, code="button_unknown")
        person = await person_of(tx, event, source)
        if person is None:
            raise unknown_person()
        approval = await approvals_store.get_approval(tx, row["approval_id"], person)
    if approval is None:
        raise Forbidden(NOT_FOR_YOU, code="not_an_approver")
    return _CardButton(button=button, row=row, approval=approval[0], person=person)


def _needs_words(event: StoredEvent, card_button: _CardButton, note: str | None) -> bool:
    """Nobody is asked for words that would change nothing: what is refused anyway is refused at once."""
    approval, button = card_button.approval, card_button.button
    is_open = approval.status is ApprovalStatus.PENDING and button.version == approval.version
    if note is not None or not is_open or event.channel.traits.reason is ReasonInput.NONE:
        return False
    if card_button.choice is Choice.APPROVED or approval.kind is ApprovalKind.UNCERTAIN_EFFECT:
        return False
    return approval_rules.refusal(approval, card_button.person, card_button.choice) is None


async def _ask(db: Database, event: StoredEvent, source: InboundEvent, card_button: _CardButton) -> None:
    about, is_reply = card_button.approval.tool_name, event.channel.traits.reason is ReasonInput.REPLY
    if card_button.choice is Choice.DENIED:
        how = f" Reply to this message with the reason, or with {SKIP}." if is_reply else ""
        text = f"Why is {about} denied?{how}"
    else:
        text = notify_rules.answer_prompt(form_of(about, card_button.approval.arguments), is_reply=is_reply)
    ref = await event.answer(source, text, ask_for=card_button.button.data)
    if ref is None:
        return
    async with db.transaction(event.org_id) as tx:
        where = (event.target.connection_id, source.chat.id, ref)
        await tx.rows(queries.insert_prompt, tx.org, *where, source.sender.id, card_button.button.data)


async def _decide(db: Database, event: StoredEvent, card_button: _CardButton, note: str | None) -> tuple[str, bool]:
    """The answer, and whether this press did it."""
    approval, button = card_button.approval, card_button.button
    words = (note or "").strip()
    if button.version != approval.version and approval.status is ApprovalStatus.PENDING:
        raise Stale("It changed.", code="approval_changed")
    if card_button.choice is Choice.APPROVED and approval.status is ApprovalStatus.PENDING:
        require_shown_whole(event, card_button.row)
    answer = None
    if card_button.choice is Choice.RESPONDED and approval.status is ApprovalStatus.PENDING:
        answer = notify_rules.read_answer(form_of(approval.tool_name, approval.arguments), words)
    decision = ApprovalDecision(
        decision=card_button.choice,
        version=button.version,
        input_hash=approval.input_hash,
        reason=words[:MAX_REASON] or None if card_button.choice is not Choice.RESPONDED else None,
        answer=answer if answer is not None or card_button.choice is not Choice.RESPONDED else words,
    )
    once = IdempotencyKey(key=event.key, fingerprint=hashlib.sha256(orjson.dumps(event.payload)).digest())
    channel = Channel(event.channel.channel_type)
    receipt = await decisions.decide(db, card_button.person, approval.id, decision, channel, once)
    is_ours = receipt.result is RecordResult.OK or await _is_ours(db, event, card_button)
    meters().called_back(event.channel.channel_type, "ok" if is_ours else "duplicate")
    if not is_ours:
        await _show_again(db, event, button.data)
    return _outcome(receipt.approval, card_button.choice, is_ours), is_ours


async def _is_ours(db: Database, event: StoredEvent, card_button: _CardButton) -> bool:
    """Whether this very event decided, before a process died that did not say so."""
    key = decisions.own_key(card_button.person, event.key)
    async with db.transaction(event.org_id) as tx:
        return bool(await tx.value(approvals_store.queries.is_key_used, card_button.approval.id, key))


def _outcome(approval: Approval, choice: Choice, is_ours: bool) -> str:
    if approval.status is ApprovalStatus.PENDING:
        return f"Your vote counts: {approval.votes_for} of {approval.quorum.votes}. It waits for others."
    if not is_ours:
        by = f" by {approval.resolved_by_name}" if approval.resolved_by_name else ""
        return f"It is {approval.status} already{by}."
    return {Choice.APPROVED: "Approved.", Choice.DENIED: "Denied.", Choice.RESPONDED: "Your answer was sent."}[choice]


def _require_no_login(card_button: _CardButton) -> None:
    """Raises ``Forbidden`` for what only somebody who is logged in decides. Anybody who may decide may deny it here."""
    approval = card_button.approval
    is_open = approval.status is ApprovalStatus.PENDING and card_button.button.version == approval.version
    if is_open and card_button.choice is not Choice.DENIED and approval.template in ASKS_FOR_LOGIN:
        raise Forbidden("This request is of high risk: a press is enough to deny it only.", code="login_required")


def require_shown_whole(event: StoredEvent, row: Row) -> None:
    """Raises ``Forbidden`` where no message of this channel may carry `Approve` for the request as it is now."""
    approval = parse(Approval, row["approval"])
    card = cards.card(cards.source_of(row, approval), Occasion.REQUESTED, event.public_url)
    if not cards.may_approve(card, event.channel):
        raise Forbidden("A message of this channel cannot show all that you would approve.", code="not_shown_whole")


async def _show_again(db: Database, event: StoredEvent, data: str) -> None:
    button = read_button(data)
    if button is not None:
        await repeat_card(db, event.org_id, button.notification_id, event.target.connection_id)


async def repeat_card(db: Database, org_id: UUID, notification_id: UUID, connection_id: UUID) -> None:
    """Bring the message of a request up to date at once, also where nothing has changed since it was sent."""
    async with db.transaction(org_id) as tx:
        if await tx.row(queries.get_card_source, notification_id, connection_id) is not None:
            await tx.rows(queries.repeat_card, notification_id)
