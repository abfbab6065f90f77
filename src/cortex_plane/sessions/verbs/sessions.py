"""Sessions, their messages and memories."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent, AgentStatus
from cortex_plane.approvals import store as approvals_store
from cortex_plane.db.database import Database, Row, Transaction, after, page
from cortex_plane.jobs import store as jobs_store
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import After, Page
from cortex_plane.proof import store as proof_store
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import (
    InboundMessage,
    IngestedMessage,
    Memory,
    Message,
    MessageDraft,
    Session,
    SessionChange,
    SessionKind,
    SessionMemory,
    SessionStatus,
)
from cortex_plane.sessions.store import queries
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.frame import require_found, require_revision, transaction_verb, verb


async def agent_for_new_session(tx: Transaction, ref: str) -> Agent:
    agent = require_found(await agents_store.get_agent(tx, ref), "agent")
    if agent.status is not AgentStatus.ACTIVE:
        raise Conflict(
            f"This agent is {agent.status} and takes no new sessions.",
            code="agent_not_active",
            hint="Activate it with `cortex agent update --status ACTIVE`, or choose another agent.",
        )
    require_api(agent)
    return agent


API = "api"
"""The name of the HTTP door in `channel_permissions`."""


def require_api(agent: Agent) -> None:
    """Channel permissions hold for every door."""
    if agent.channel_permissions and API not in agent.channel_permissions:
        raise Forbidden(
            f"This agent may not be reached over {API}.",
            code="channel_not_permitted",
            hint="Add the channel to the agent's channel_permissions, or use a permitted channel.",
        )


async def find_outside_session(
    tx: Transaction, actor: Actor, agent_ref: str, outside_id: str, person: UUID | None
) -> Row | None:
    """The actor's open session of this agent with this outside id for this person, and whether its job is over."""
    agent = require_found(await agents_store.get_agent(tx, agent_ref), "agent")
    require_api(agent)
    return await tx.row(queries.find_outside_session, agent.id, actor.identity, outside_id, person)


async def find_last_outside_session(tx: Transaction, actor: Actor, agent_ref: str, outside_id: str) -> Row | None:
    """The actor's own newest session of this agent with this outside id, also one that is over, and how its job stands."""
    agent = require_found(await agents_store.get_agent(tx, agent_ref), "agent")
    require_api(agent)
    return await tx.row(queries.find_last_outside_session, agent.id, actor.identity, outside_id, actor.user_account_id)


async def open_programmatic_session(tx: Transaction, actor: Actor, agent_ref: str) -> tuple[Agent, UUID, Fact]:
    """Active from the start. The fact is for its first audit entry, which the caller appends."""
    agent = await agent_for_new_session(tx, agent_ref)
    id = new_id()
    await sessions_store.insert_session(
        tx, id, SessionKind.PROGRAMMATIC, actor.user_account_id, agent.id, None, {}, actor, SessionStatus.ACTIVE
    )
    return agent, id, Fact.of(actor, "session_created", session=str(id), agent=str(agent.id))


async def require_open_session(tx: Transaction, actor: Actor, session_id: UUID, agent_id: UUID) -> None:
    """Lock the session, so that it cannot end while a job is added to it."""
    session = require_found(await sessions_store.lock_session(tx, session_id, actor.sees), "session")
    if session["agent_id"] != agent_id:
        raise Conflict(
            "This session belongs to another agent.",
            code="wrong_agent",
            hint="Name the agent of the session, or leave out `session_id` to open a new one.",
        )
    if session["kind"] == SessionKind.EXTERNAL:
        raise Conflict(
            "The agent of this session runs elsewhere: no worker takes its jobs.",
            code="external_session",
            hint="Open a new session where the agent is to go on, or submit the job without a session.",
        )
    status = session["status"]
    if status == SessionStatus.CREATED:
        await sessions_store.set_session_status(tx, session_id, SessionStatus.ACTIVE)
        await proof_store.append_to_session(tx, session_id, [Fact.of(actor, "session_activated")])
    elif status != SessionStatus.ACTIVE:
        raise Conflict(
            f"This session is {status} and takes no new jobs.",
            code="session_not_active",
            hint="A message from its user makes a paused session active again; an ended one needs a new session.",
        )


@transaction_verb(Permission.SESSION_READ)
async def get_session(tx: Transaction, actor: Actor, id: UUID) -> Session:
    return require_found(await sessions_store.get_session(tx, id, actor.sees), "session")


@transaction_verb(Permission.SESSION_READ)
async def list_sessions(
    tx: Transaction,
    actor: Actor,
    position: After,
    limit: int,
    *,
    status: SessionStatus | None = None,
    agent: str | None = None,
    member_id: UUID | None = None,
    outside_id: str | None = None,
) -> Page[Session]:
    agent_id = require_found(await agents_store.get_agent(tx, agent), "agent").id if agent else None
    filters = (actor.sees, member_id, status, agent_id, outside_id)
    return page(Session, await tx.rows(queries.list_sessions, *after(position), limit + 1, *filters), limit)


@transaction_verb(Permission.SESSION_WRITE)
async def update_session(
    tx: Transaction, actor: Actor, id: UUID, change: SessionChange, revision: int | None
) -> Session:
    session_row = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
    require_revision(session_row["revision"], revision)
    if session_row["status"] == SessionStatus.TERMINATED:
        raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
    # The writer of a context is a cause of what its jobs ask for.
    await tx.rows(queries.update_session, id, change.title, change.context, actor.identity)
    fact = Fact.of(actor, "session_changed", title=change.title, context=change.context is not None)
    await proof_store.append_to_session(tx, id, [fact])
    return require_found(await sessions_store.get_session(tx, id, None), "session")


async def suspended_sessions(db: Database) -> dict[UUID, int]:
    """How many sessions of each org have a job that waits for a person; orgs without any are left out. All orgs: for the
    platform only."""
    return {row["org_id"]: row["sessions"] for row in await db.call("count_suspended_sessions", None)}


async def end_approvals(tx: Transaction, session_id: UUID, job_ids: Sequence[UUID], actor: Actor, reason: str) -> None:
    """Nobody is asked any more about jobs that ended."""
    rows = await approvals_store.cancel_approvals(tx, job_ids, reason)
    if rows:
        facts = [
            replace(Fact.of(actor, "approval_cancelled", approval=row["id"], reason=reason), job=row["job_id"])
            for row in rows
        ]
        events = [("approval_cancelled", row["job_id"], {"approval_id": str(row["id"])}) for row in rows]
        await proof_store.append_to_session(tx, session_id, facts, events)


TRIES = 3
REMEMBERED = 50_000
Sender = tuple[UUID, UUID, str]
"""An org, a connection and a name there."""

_mappings: OrderedDict[Sender, sessions_store.CheckedMapping] = OrderedDict()


@verb(Permission.MESSAGE_INGEST)
async def ingest_message(
    db: Database, actor: Actor, connection_id: UUID, inbound: InboundMessage, once: IdempotencyKey | None = None,
    *, chat_id: UUID | None = None,
) -> IngestedMessage:  # fmt: skip
    """Whoever wrote, and whatever exists already: afterwards the message is in a session with a job to read it. ``chat_id``: of the
    `channel_chat` to which its answer is pushed."""
    account, mapping, session, job = new_id(), new_id(), new_id(), new_id()
    where = {"connection": str(connection_id), "external_user": inbound.external_user_id}
    facts = (
        Fact.of(actor, "account_created", account=str(account), mapping=str(mapping), **where),
        Fact.of(actor, "session_created", session=str(session), **where),
        Fact.of(actor, "message_received", **where, text_sha256=_digest(inbound.text)),
        Fact.of(actor, "job_created", job=str(job)),
        Fact.of(actor, "session_activated", **where),
    )
    sender = (actor.org_id, connection_id, inbound.external_user_id)
    for _ in range(TRIES):
        try:
            delivery = await sessions_store.ingest_message(
                db,
                actor,
                connection_id,
                inbound,
                (account, mapping, session, job),
                facts,
                _mappings.get(sender),
                once,
                chat_id,
            )
            break
        except Conflict as error:
            # The sender has another mapping than the one that was checked.
            if error.code != "mapping_unchecked":
                raise
            await _check(db, sender)
    else:
        raise Conflict("Whose this sender is changes all the time.", code="retry", hint="Send it again.")
    if "account" in delivery.created:
        _remember(sender, (mapping, account))
    db.hints.work()
    return delivery


async def _check(db: Database, sender: Sender) -> None:
    """Once in a process for each sender: afterwards the message itself says whether the mapping is still this one."""
    async with forgery_refusal(db, _sender_unknown):
        mapping = await sessions_store.check_mapping(db, *sender)
    if mapping is not None:
        _remember(sender, mapping)


def _remember(sender: Sender, mapping: sessions_store.CheckedMapping) -> None:
    _mappings[sender] = mapping
    _mappings.move_to_end(sender)
    if len(_mappings) > REMEMBERED:
        _mappings.popitem(last=False)


def _sender_unknown() -> Forbidden:
    return Forbidden(
        "It is not known whose this sender is: what is kept about them was not written by the plane.",
        code="sender_unknown",
        hint="An admin takes the channel from the member (`cortex member unlink`), and they link it anew.",
    )


@verb(Permission.SESSION_WRITE)
async def post_message(
    db: Database, actor: Actor, session_id: UUID, draft: MessageDraft, once: IdempotencyKey | None = None
) -> IngestedMessage:
    job = new_id()
    facts = (
        Fact.of(actor, "message_received", text_sha256=_digest(draft.text)),
        Fact.of(actor, "job_created", job=str(job)),
        Fact.of(actor, "session_activated"),
    )
    delivery = await sessions_store.post_message(db, actor, session_id, draft.text, job, facts, once)
    db.hints.work()
    return delivery


def _digest(text: str) -> str:
    """The trail proves what was said without keeping it twice."""
    return hashlib.sha256(text.encode()).hexdigest()


@transaction_verb(Permission.SESSION_READ)
async def list_messages(tx: Transaction, actor: Actor, session_id: UUID, above: int, limit: int) -> list[Message]:
    """In the order they were said, after number ``above``."""
    require_found(await sessions_store.get_session(tx, session_id, actor.sees), "session")
    return [parse(Message, row) for row in await tx.rows(queries.list_messages, session_id, above, limit)]


@transaction_verb(Permission.SESSION_READ)
async def list_memories(
    tx: Transaction, actor: Actor, session_id: UUID, below: int | None, limit: int
) -> list[SessionMemory]:
    """The newest first, which is the one that the next job begins with; then those that it was made from."""
    require_found(await sessions_store.get_session(tx, session_id, actor.sees), "session")
    return [parse(SessionMemory, row) for row in await tx.rows(queries.list_memories, session_id, below, limit)]


@transaction_verb(Permission.JOB_READ)
async def list_job_memories(tx: Transaction, actor: Actor, job_id: UUID) -> Memory:
    """What a job remembers of the turns that it no longer sends to its model; empty where it sends everything."""
    require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
    row = await tx.row(queries.list_job_memories, job_id)
    return Memory(row["summary"], tuple(row["facts"])) if row else Memory()
