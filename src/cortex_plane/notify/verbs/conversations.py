"""Words that people write on channels: for an agent, as a reply to something that was asked, or a command."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib

import orjson
from pydantic import ValidationError

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, TooMany
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.notify.model.channels import ChannelSender, ChatMessage
from cortex_plane.notify.model.notifications import TryAgain, Undeliverable
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs import delegations, presses
from cortex_plane.notify.verbs.channel_events import StoredEvent
from cortex_plane.notify.verbs.channel_port import ActivityChannel
from cortex_plane.notify.verbs.chat_commands import run_command
from cortex_plane.notify.verbs.chats import ChatContext, display_name, read_chat
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions

MAX_WORDS = 100_000
ACTIVITY_SECONDS = 2.0
"""So long what comes next in the chat waits for a vendor at most."""
MAX_LISTED = 200
"""Characters of the names of attachments."""


async def hear(db: Database, event: StoredEvent, message: ChatMessage) -> None:
    """Whatever goes wrong is said to the sender, unless they are a stranger in a chat of others: there the plane is silent."""
    if message.sender.is_bot or await _hear_reply(db, event, message):
        return
    text = message.text.strip()
    word, _, rest = text.partition(" ")
    is_command = word.startswith("/") and len(word) > 1
    if word.lower() == delegations.COMMAND and await delegations.is_reply_to_card(db, event, message):
        word, is_command = f"/{word}", True
    try:
        if message.attachments and not is_command:
            names = ", ".join(message.attachments)[:MAX_LISTED]
            raise InvalidInput(
                f"I cannot read attachments ({names}), so I took nothing of this message. Send it as text."
            )
        if is_command:
            await event.answer(
                message, await run_command(db, await read_chat(db, event, message), word[1:].lower(), rest.strip())
            )
        elif text:
            await _tell_agent(db, await read_chat(db, event, message))
    except (InvalidInput, Forbidden, NotFound, Conflict, TooMany) as error:
        if error.code == "retry":
            raise
        if message.chat.is_private or not _concerns_strangers(error):
            await event.answer(message, _in_words(error), is_problem=True)


def _concerns_strangers(error: CortexError) -> bool:
    return error.code in ("guests_not_allowed", "sender_unknown")


def _in_words(error: CortexError) -> str:
    if error.code == "guests_not_allowed":
        return f"{error.message} If you are a member, link this account: get a code on the dashboard, then send `/link CODE`."
    return error.message


async def _hear_reply(db: Database, event: StoredEvent, message: ChatMessage) -> bool:
    """Whether these are the words that a button asked for."""
    where = (event.target.connection_id, message.chat.id)
    async with db.transaction(event.org_id) as tx:
        if message.reply_to is not None:
            ref, data = (
                message.reply_to,
                await tx.value(queries.get_prompt, *where, message.reply_to, message.sender.id),
            )
        elif message.text.strip().lower() == presses.SKIP:
            row = await tx.row(queries.last_prompt, *where, message.sender.id)
            ref, data = (row["message_ref"], row["data"]) if row else ("", None)
        else:
            return False
    if data is None:
        return False
    if await presses.reply(db, event, message, data, message.text):
        async with db.transaction(event.org_id) as tx:
            await tx.rows(queries.delete_prompt, *where, ref)
    return True


async def _tell_agent(db: Database, chat: ChatContext) -> None:
    event, message = chat.event, chat.message
    agent = chat.require_agent()
    try:
        inbound = InboundMessage(
            external_user_id=message.sender.id, agent=str(agent.id), text=message.text[:MAX_WORDS],
            display_name=display_name(message.sender), metadata=_metadata(message.sender),
        )  # fmt: skip
    except ValidationError:
        raise InvalidInput("I cannot read this message: it has characters that cannot be stored.") from None
    once = IdempotencyKey(key=event.key, fingerprint=hashlib.sha256(orjson.dumps(event.payload)).digest())
    ingested = await sessions.ingest_message(
        db, event.bridge(), event.target.connection_id, inbound, once, chat_id=chat.chat_id
    )
    if not ingested.replayed:
        await _show_activity(event, message)


def _metadata(sender: ChannelSender) -> dict[str, str]:
    """What is stored with the mapping of a guest who writes for the first time."""
    return dict(sender.metadata) | ({"owner": sender.owner} if sender.owner else {})


async def _show_activity(event: StoredEvent, message: ChatMessage) -> None:
    """The agent has the message already, and answers also where this fails."""
    if isinstance(event.channel, ActivityChannel):
        with contextlib.suppress(TryAgain, Undeliverable, TimeoutError):
            async with asyncio.timeout(ACTIVITY_SECONDS):
                await event.channel.show_activity(event.target, message)
