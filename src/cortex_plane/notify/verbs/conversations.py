"""Words that people write on channels: for an agent, as a reply to something that was asked, or a command."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from uuid import UUID

import orjson
from pydantic import ValidationError

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent, AgentStatus
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, CortexError, Forbidden, InvalidInput, NotFound, TooMany
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.notify.model.channels import ChatMessage
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs import presses
from cortex_plane.notify.verbs.channel_events import StoredEvent
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import InboundMessage, RuntimeStatus, Session, Termination
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.model.identities import LinkDraft
from cortex_plane.tenancy.verbs import connections
from cortex_plane.tenancy.verbs.access import forgery_refusal

MAX_LISTED = 50
MAX_WORDS = 100_000
MAX_NAME = 200
HELP = """\
Write to me, and the agent answers here. Commands:
/new begins a new conversation
/status says what the agent does
/pause holds the conversation, /resume goes on
/agents lists the agents, /agents NAME chooses one for this chat
/link CODE links this account to yours, in a private chat"""
NO_CONVERSATION = "There is no conversation yet. Write something to begin one."
NO_AGENT = "No agent is set for this connection. Choose one with `/agents NAME`, or ask an admin to set one."
_WHAT_IT_DOES = {
    RuntimeStatus.INITIALIZING: "nothing was asked of it yet",
    RuntimeStatus.ACTIVE: "it works, or is ready",
    RuntimeStatus.SUSPENDED: "it waits for a person, or is paused",
    RuntimeStatus.TERMINATED: "the conversation is over",
    RuntimeStatus.ERROR: "its last job failed; write again to let it try anew",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class _Talk:
    """A message with who wrote it and which agent it is for."""

    event: StoredEvent
    message: ChatMessage
    chat_id: UUID
    person: Actor | None
    """A member or a guest of the org; None for a stranger."""
    agent: Agent | None

    def require_person(self) -> Actor:
        if self.person is None:
            raise Forbidden(presses.UNKNOWN_PERSON, code="sender_unknown")
        return self.person


Command = Callable[[Database, _Talk, str], Awaitable[str]]


async def hear(db: Database, event: StoredEvent, message: ChatMessage) -> None:
    """Whatever goes wrong is said to the sender, unless they are a stranger in a chat of others: there the plane is silent."""
    if message.sender.is_bot or await _hear_reply(db, event, message):
        return
    text = message.text.strip()
    word, _, rest = text.partition(" ")
    is_command = word.startswith("/") and len(word) > 1
    try:
        if message.attachments and not is_command:
            names = ", ".join(message.attachments)[:MAX_NAME]
            raise InvalidInput(
                f"I cannot read attachments ({names}), so I took nothing of this message. Send it as text."
            )
        if is_command:
            await event.answer(
                message, await _command(db, await _talk(db, event, message), word[1:].lower(), rest.strip())
            )
        elif text:
            await _tell_agent(db, await _talk(db, event, message))
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


async def _talk(db: Database, event: StoredEvent, message: ChatMessage) -> _Talk:
    connection_id, chat = event.target.connection_id, message.chat
    async with forgery_refusal(db, _forged_sender), db.transaction(event.org_id) as tx:
        row = await tx.row(
            queries.upsert_chat, tx.org, new_id(), connection_id, chat.id, message.sender.id, chat.thread
        )
        if row is None:
            raise AssertionError("an upsert returns its row")
        person = await presses.person_of(tx, event, message)
        ref = row["agent_id"] or event.agent_id or event.target.config.get("agent")
        agent = await agents_store.get_agent(tx, str(ref)) if ref else None
    return _Talk(event=event, message=message, chat_id=row["id"], person=person, agent=agent)


def _forged_sender() -> Forbidden:
    return Forbidden(presses.UNKNOWN_PERSON, code="sender_unknown")


async def _tell_agent(db: Database, talk: _Talk) -> None:
    event, message = talk.event, talk.message
    if talk.agent is None:
        raise Conflict(NO_AGENT, code="agent_missing")
    try:
        inbound = InboundMessage(
            external_user_id=message.sender.id, agent=str(talk.agent.id), text=message.text[:MAX_WORDS],
            display_name=message.sender.name[:MAX_NAME].strip() or None, metadata=dict(message.sender.metadata),
        )  # fmt: skip
    except ValidationError:
        raise InvalidInput("I cannot read this message: it has characters that cannot be stored.") from None
    once = IdempotencyKey(key=event.key, fingerprint=hashlib.sha256(orjson.dumps(event.payload)).digest())
    await sessions.ingest_message(db, event.bridge(), event.target.connection_id, inbound, once, chat_id=talk.chat_id)


async def _command(db: Database, talk: _Talk, name: str, rest: str) -> str:
    command = COMMANDS.get(name)
    if command is None:
        return f"I do not know /{name[:50]}. Send /help for what I know."
    return await command(db, talk, rest)


async def _help(_: Database, __: _Talk, ___: str) -> str:
    return HELP


async def _start(db: Database, talk: _Talk, rest: str) -> str:
    """Deep links begin with it, and may bring a code."""
    if rest:
        return await _link(db, talk, rest)
    known = f"Hello, {talk.person.name}." if talk.person else "Hello."
    return f"{known} {HELP}"


async def _conversation(db: Database, talk: _Talk, person: Actor) -> Session:
    if talk.agent is None:
        raise Conflict(NO_AGENT, code="agent_missing")
    async with db.transaction(talk.event.org_id) as tx:
        id = await tx.value(sessions_store.queries.open_conversation, person.user_account_id, talk.agent.id)
        session = await sessions_store.get_session(tx, id, None) if id else None
    if session is None:
        raise NotFound(NO_CONVERSATION, code="session_not_found")
    return session


async def _new(db: Database, talk: _Talk, _: str) -> str:
    person = talk.require_person()
    session = await _conversation(db, talk, person)
    await session_lifecycle.terminate(db, person, session.id, Termination(reason="its person began a new one"))
    return "What you write next begins a new conversation."


async def _status(db: Database, talk: _Talk, _: str) -> str:
    session = await _conversation(db, talk, talk.require_person())
    name = talk.agent.name if talk.agent else ""
    lines = [f"Agent: {name}", f"Conversation: {session.title or 'without a title'}"]
    if session.held_at is not None:
        lines.append(f"It is paused: {session.hold_reason or 'no reason was given'}")
    elif session.agent_status is not None:
        lines.append(f"Status: {_WHAT_IT_DOES[session.agent_status]}")
    return "\n".join(lines)


async def _pause(db: Database, talk: _Talk, rest: str) -> str:
    person = talk.require_person()
    session = await _conversation(db, talk, person)
    await steering.pause_session(db, person, session.id, Pause(reason=rest[:500] or None))
    return "Paused. /resume goes on."


async def _resume(db: Database, talk: _Talk, _: str) -> str:
    person = talk.require_person()
    session = await _conversation(db, talk, person)
    await steering.resume_session(db, person, session.id, Resumption())
    return "It goes on."


async def _agents(db: Database, talk: _Talk, rest: str) -> str:
    person = talk.require_person()
    person.require(Permission.AGENT_READ)
    kind = talk.event.channel.channel_type
    async with db.transaction(talk.event.org_id) as tx:
        page = await agents_store.list_agents(tx, None, MAX_LISTED, AgentStatus.ACTIVE)
        agents = [a for a in page.items if not a.channel_permissions or kind in a.channel_permissions]
        if not rest:
            mine = talk.agent.id if talk.agent else None
            lines = [f"{agent.slug}: {agent.name}{' (chosen)' if agent.id == mine else ''}" for agent in agents]
            return "\n".join([*lines, "Choose one with /agents NAME."]) if lines else "There is no agent."
        chosen = next((a for a in agents if rest.casefold() in (a.slug.casefold(), a.name.casefold())), None)
        if chosen is None:
            raise NotFound(f"There is no agent {rest[:100]}. /agents lists them.", code="agent_not_found")
        await tx.rows(queries.choose_chat_agent, talk.chat_id, chosen.id)
    return f"What you write here goes to {chosen.name} from now on."


async def _link(db: Database, talk: _Talk, code: str) -> str:
    if not talk.message.chat.is_private:
        raise Forbidden("Codes work in private chats only: others could copy it here.", code="chat_not_private")
    if not code:
        raise InvalidInput("Send the code with it: `/link CODE`. You get one on the dashboard under Channels.")
    return await link_sender(db, talk.event, talk.message, code)


async def link_sender(db: Database, event: StoredEvent, message: ChatMessage, code: str) -> str:
    """Claim a sender for the member whose code it is."""
    try:
        draft = LinkDraft(code=code[:100], external_user_id=message.sender.id)
    except ValidationError:
        raise InvalidInput("This is no code. You get one on the dashboard under Channels.") from None
    await connections.redeem_link_code(db, event.bridge(), event.target.connection_id, draft)
    return "This account is linked to yours."


COMMANDS: dict[str, Command] = {
    "new": _new,
    "status": _status,
    "pause": _pause,
    "resume": _resume,
    "agents": _agents,
    "link": _link,
    "help": _help,
    "start": _start,
}
