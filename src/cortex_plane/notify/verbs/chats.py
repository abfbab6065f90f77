"""Chats: who writes in one, which agent hears them, and the conversation that they have with it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent, AgentStatus
from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Conflict, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.channels import ChannelSender, ChatMessage
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs.channel_events import StoredEvent, person_of, unknown_person
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import Session
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.access import forgery_refusal

MAX_LISTED = 50
MAX_NAME = 200
NO_CONVERSATION = "There is no conversation yet. Write something to begin one."
NO_AGENT = "No agent is set for this connection. Choose one with `/agents NAME`, or ask an admin to set one."


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatContext:
    """A message with who wrote it and which agent it is for."""

    event: StoredEvent
    message: ChatMessage
    chat_id: UUID
    person: Actor | None
    """A member or a guest of the org; None for a stranger."""
    agent: Agent | None

    def require_person(self) -> Actor:
        if self.person is None:
            raise unknown_person()
        return self.person

    def require_agent(self) -> Agent:
        if self.agent is None:
            raise Conflict(NO_AGENT, code="agent_missing")
        return self.agent


def display_name(sender: ChannelSender) -> str | None:
    """What to call somebody, without characters that nobody sees; None where nothing is left."""
    visible = "".join(character if character.isprintable() else " " for character in sender.name)
    return " ".join(visible.split())[:MAX_NAME] or None


async def read_chat(db: Database, event: StoredEvent, message: ChatMessage) -> ChatContext:
    connection_id, chat = event.target.connection_id, message.chat
    async with forgery_refusal(db, unknown_person), db.transaction(event.org_id) as tx:
        row = await tx.row(
            queries.upsert_chat, tx.org, new_id(), connection_id, chat.id, message.sender.id, chat.thread
        )
        if row is None:
            raise AssertionError("an upsert returns its row")
        person = await person_of(tx, event, message)
        agent_id = row["agent_id"] or event.agent_id
        agent = await agents_store.get_agent(tx, str(agent_id)) if agent_id else None
    return ChatContext(event=event, message=message, chat_id=row["id"], person=person, agent=agent)


async def open_conversation(db: Database, chat: ChatContext, person: Actor) -> Session:
    agent = chat.require_agent()
    async with db.transaction(chat.event.org_id) as tx:
        id = await tx.value(sessions_store.queries.open_conversation, person.user_account_id, agent.id)
        session = await sessions_store.get_session(tx, id, None) if id else None
    if session is None:
        raise NotFound(NO_CONVERSATION, code="session_not_found")
    return session


async def list_agents(db: Database, chat: ChatContext) -> list[str]:
    """A line for each that may be reached over this channel."""
    async with db.transaction(chat.event.org_id) as tx:
        agents = await _reachable_agents(tx, chat)
    chosen = chat.agent.id if chat.agent else None
    return [f"{agent.slug}: {agent.name}{' (chosen)' if agent.id == chosen else ''}" for agent in agents]


async def choose_agent(db: Database, chat: ChatContext, name: str) -> str:
    """What this person writes in this chat goes to the agent of this name or slug from now on; returns its name."""
    async with db.transaction(chat.event.org_id) as tx:
        by_slug = await agents_store.get_agent(tx, name.lower())
        agents = [*_reachable(chat, [by_slug] if by_slug else []), *await _reachable_agents(tx, chat)]
        agent = next((a for a in agents if name.casefold() in (a.slug.casefold(), a.name.casefold())), None)
        if agent is None:
            raise NotFound(f"There is no agent {name[:100]}. /agents lists them.", code="agent_not_found")
        await tx.rows(queries.choose_chat_agent, chat.chat_id, agent.id)
    return agent.name


async def _reachable_agents(tx: Transaction, chat: ChatContext) -> list[Agent]:
    """The newest of them."""
    page = await agents_store.list_agents(tx, None, MAX_LISTED, AgentStatus.ACTIVE)
    return _reachable(chat, page.items)


def _reachable(chat: ChatContext, agents: Sequence[Agent]) -> list[Agent]:
    kind = chat.event.channel.channel_type
    return [
        agent
        for agent in agents
        if agent.status is AgentStatus.ACTIVE and (not agent.channel_permissions or kind in agent.channel_permissions)
    ]
