"""Commands that people write on channels."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from pydantic import ValidationError

from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import Pause, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Forbidden, InvalidInput
from cortex_plane.notify.model.channels import ChatMessage
from cortex_plane.notify.verbs import delegations
from cortex_plane.notify.verbs.channel_events import StoredEvent
from cortex_plane.notify.verbs.chats import ChatContext, choose_agent, display_name, list_agents, open_conversation
from cortex_plane.sessions.model.sessions import RuntimeStatus, Termination
from cortex_plane.tenancy.model.access import Permission
from cortex_plane.tenancy.model.identities import ClaimDraft
from cortex_plane.tenancy.verbs import links

HELP = """\
Write to me, and the agent answers here. Commands:
/new begins a new conversation
/status says what the agent does
/pause holds the conversation, /resume goes on
/agents lists the agents, /agents NAME chooses one for this chat
/delegate NAME, as a reply to a request, lets a colleague decide it instead of you
/link CODE links this account to yours, in a private chat"""
_WHAT_IT_DOES = {
    RuntimeStatus.INITIALIZING: "nothing was asked of it yet",
    RuntimeStatus.ACTIVE: "it works, or is ready",
    RuntimeStatus.SUSPENDED: "it waits for a person, or is paused",
    RuntimeStatus.TERMINATED: "the conversation is over",
    RuntimeStatus.ERROR: "its last job failed; write again to let it try anew",
}


Command = Callable[[Database, ChatContext, str], Awaitable[str]]


async def run_command(db: Database, chat: ChatContext, name: str, rest: str) -> str:
    command = COMMANDS.get(name)
    if command is None:
        return f"I do not know /{name[:50]}. Send /help for what I know."
    return await command(db, chat, rest)


async def _help(_: Database, __: ChatContext, ___: str) -> str:
    return HELP


async def _start(db: Database, chat: ChatContext, rest: str) -> str:
    """Deep links begin with it, and may bring a code."""
    if rest:
        return await _link(db, chat, rest)
    known = f"Hello, {chat.person.name}." if chat.person else "Hello."
    return f"{known} {HELP}"


async def _new(db: Database, chat: ChatContext, _: str) -> str:
    person = chat.require_person()
    session = await open_conversation(db, chat, person)
    await session_lifecycle.terminate(db, person, session.id, Termination(reason="its person began a new one"))
    return "What you write next begins a new conversation."


async def _status(db: Database, chat: ChatContext, _: str) -> str:
    session = await open_conversation(db, chat, chat.require_person())
    name = chat.agent.name if chat.agent else ""
    lines = [f"Agent: {name}", f"Conversation: {session.title or 'without a title'}"]
    if session.held_at is not None:
        lines.append(f"It is paused: {session.hold_reason or 'no reason was given'}")
    elif session.agent_status is not None:
        lines.append(f"Status: {_WHAT_IT_DOES[session.agent_status]}")
    return "\n".join(lines)


async def _pause(db: Database, chat: ChatContext, rest: str) -> str:
    person = chat.require_person()
    session = await open_conversation(db, chat, person)
    await steering.pause_session(db, person, session.id, Pause(reason=rest[:500] or None))
    return "Paused. /resume goes on."


async def _resume(db: Database, chat: ChatContext, _: str) -> str:
    person = chat.require_person()
    session = await open_conversation(db, chat, person)
    await steering.resume_session(db, person, session.id, Resumption())
    return "It goes on."


async def _agents(db: Database, chat: ChatContext, rest: str) -> str:
    chat.require_person().require(Permission.AGENT_READ)
    if rest:
        return f"What you write here goes to {await choose_agent(db, chat, rest)} from now on."
    lines = await list_agents(db, chat)
    return "\n".join([*lines, "Choose one with /agents NAME."]) if lines else "There is no agent."


async def _link(db: Database, chat: ChatContext, code: str) -> str:
    if not chat.message.chat.is_private:
        raise Forbidden("Codes work in private chats only: others could copy it here.", code="chat_not_private")
    if not code:
        raise InvalidInput("Send the code with it: `/link CODE`. You get one on the dashboard under Your channels.")
    return await link_sender(db, chat.event, chat.message, code)


async def link_sender(db: Database, event: StoredEvent, message: ChatMessage, code: str) -> str:
    """Claim a sender for the member whose code it is. They confirm it where they are logged in."""
    name = display_name(message.sender) or message.sender.id
    try:
        draft = ClaimDraft(
            code=code[:100], external_user_id=message.sender.id, display_name=name, owner=message.sender.owner
        )
    except ValidationError:
        raise InvalidInput("This is no code. You get one on the dashboard under Your channels.") from None
    mapping = await links.claim_link(db, event.bridge(), event.target.connection_id, draft)
    if mapping.verified_at is not None:
        return "This account is linked to yours already."
    return f"One step is left: confirm on the dashboard, under Your channels, that `{name}` is you."


COMMANDS: dict[str, Command] = {
    "new": _new,
    "status": _status,
    "pause": _pause,
    "resume": _resume,
    "agents": _agents,
    delegations.COMMAND: delegations.delegate_request,
    "link": _link,
    "help": _help,
    "start": _start,
}
