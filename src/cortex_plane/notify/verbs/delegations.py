"""`/delegate NAME` on a chat: somebody hands their part in a request to a colleague, as they can on the dashboard."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals.model.approvals import Channel, DelegationDraft
from cortex_plane.approvals.verbs import approvals
from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.notify.model.channels import Button, ButtonAction, ChatMessage
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs.channel_events import StoredEvent
from cortex_plane.notify.verbs.chats import ChatContext
from cortex_plane.tenancy.model.access import Actor

COMMAND = "delegate"
MOST_RECENT = 500
"""Cards among which an id is looked for, newest first."""
MAX_REASON = 500
MOST_NAMES = 10
HOW = "Reply to a request with `/delegate NAME`, or send `/delegate ID NAME` with the id that the request shows."
NO_CARD = f"I do not know which request you mean. {HOW}"


async def is_reply_to_card(db: Database, event: StoredEvent, message: ChatMessage) -> bool:
    """Where people cannot begin a reply with a slash, as in threads of Slack, the word alone is a command below a request."""
    if message.reply_to is None:
        return False
    async with db.transaction(event.org_id) as tx:
        return await tx.value(queries.is_card, event.target.connection_id, message.reply_to) is not None


async def delegate_request(db: Database, chat: ChatContext, rest: str) -> str:
    """``rest``: the name and a reason, after the id of a request where the message replies to none."""
    person = chat.require_person()
    words = " ".join(rest.split())
    id = await _replied_request(db, chat, person)
    if id is None:
        code, _, words = words.partition(" ")
        id = await _request_of(db, chat, person, code.lower())
    if id is None:
        raise NotFound(NO_CARD, code="request_unknown")
    words = words.removeprefix("@")
    if not words:
        raise InvalidInput(f"Name who is to decide instead of you. {HOW}")
    return await _hand_on(db, chat, person, id, words)


async def _replied_request(db: Database, chat: ChatContext, person: Actor) -> UUID | None:
    if chat.message.reply_to is None:
        return None
    rows = await _cards(db, chat, person, chat.message.reply_to, 1)
    return rows[0][1] if rows else None


async def _request_of(db: Database, chat: ChatContext, person: Actor, code: str) -> UUID | None:
    for notification_id, approval_id in await _cards(db, chat, person, None, MOST_RECENT):
        if Button(action=ButtonAction.MORE, notification_id=notification_id, version=1).short_id == code:
            return approval_id
    return None


async def _cards(
    db: Database, chat: ChatContext, person: Actor, ref: str | None, limit: int
) -> list[tuple[UUID, UUID]]:
    """Notifications with their requests: those of this person, and those of the place where they write."""
    where = (chat.event.target.connection_id, ref, person.user_account_id, chat.message.chat.id)
    async with db.transaction(chat.event.org_id) as tx:
        rows = await tx.rows(queries.list_person_cards, *where, limit)
    return [(row["id"], row["approval_id"]) for row in rows]


async def _hand_on(db: Database, chat: ChatContext, person: Actor, id: UUID, words: str) -> str:
    details = await approvals.get_approval(db, person, id)
    # This very message may have done it, before a process died that did not say so.
    done = [hop for hop in details.delegations if hop.from_member_id == person.user_account_id]
    if done and _begins_with(words, done[-1].to_member):
        return _answer(details.approval.tool_name, done[-1].to_member)
    takers = await approvals.delegates_in_words(db, person, id, words)
    if not takers:
        raise NotFound(await _nobody(db, chat, person, id, words), code="delegate_unknown")
    (taker, *others) = takers
    if others:
        raise Conflict(
            f"{len(takers)} people are called {taker.display_name}. Choose one of them in the dashboard: "
            f"{chat.event.public_url}/approvals/{id}",
            code="delegate_ambiguous",
        )
    reason = words[len(taker.display_name) :].strip()[:MAX_REASON] or None
    draft = DelegationDraft(to=taker.id, reason=reason)
    approval = await approvals.delegate(db, person, id, draft, channel=Channel(chat.event.channel.channel_type))
    return _answer(approval.tool_name, taker.display_name)


def _begins_with(words: str, name: str) -> bool:
    return f"{words} ".lower().startswith(f"{name} ".lower())


def _answer(tool: str, name: str) -> str:
    return f"{name} decides about {tool} instead of you now."


async def _nobody(db: Database, chat: ChatContext, person: Actor, id: UUID, words: str) -> str:
    """Who could take it is nobody else's business: the names are for private chats."""
    text = f"Nobody who could take it is called {words[:100]}."
    if not chat.message.chat.is_private:
        return text
    names = [delegate.display_name for delegate in await approvals.list_delegates(db, person, approval_id=id)]
    if not names:
        return "There is nobody who could take it instead of you."
    more = f", and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    return f"{text} These could: {', '.join(names[:MOST_NAMES])}{more}."
