"""Sessions, their messages and memories."""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.agents import Agent, AgentStatus
from cortex_plane.approvals import store as approvals_store
from cortex_plane.db.database import Database, Transaction
from cortex_plane.jobs import store as jobs_store
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.kernel.fields import split_ref
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
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
    title_from,
)
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.access import forgery_refusal
from cortex_plane.tenancy.verbs.frame import require_found, require_revision, verb


async def agent_for_new_session(tx: Transaction, ref: str) -> Agent:
    agent = require_found(await agents_store.get_agent(tx, ref), "agent")
    if agent.status is not AgentStatus.ACTIVE:
        raise Conflict(
            f"This agent is {agent.status} and takes no new sessions.",
            code="agent_not_active",
            hint="Activate it with `cortex agent update --status ACTIVE`, or choose another agent.",
        )
    return agent


async def open_programmatic_session(tx: Transaction, actor: Actor, agent_ref: str) -> tuple[Agent, UUID]:
    agent = await agent_for_new_session(tx, agent_ref)
    id = new_id()
    await sessions_store.insert_session(
        tx, id, SessionKind.PROGRAMMATIC, actor.user_account_id, agent.id, None, {}, actor
    )
    await sessions_store.set_session_status(tx, id, SessionStatus.ACTIVE)
    await proof_store.append_to_session(
        tx, id, [Fact.of(actor, "session_created", session=str(id), agent=str(agent.id))]
    )
    return agent, id


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


@verb(Permission.SESSION_READ)
async def get_session(db: Database, actor: Actor, id: UUID) -> Session:
    async with db.transaction(actor.org_id) as tx:
        return require_found(await sessions_store.get_session(tx, id, actor.sees), "session")


@verb(Permission.SESSION_READ)
async def list_sessions(
    db: Database,
    actor: Actor,
    position: Position | None,
    limit: int,
    *,
    status: SessionStatus | None = None,
    agent: str | None = None,
    member_id: UUID | None = None,
) -> Page[Session]:
    async with db.transaction(actor.org_id) as tx:
        agent_id = require_found(await agents_store.get_agent(tx, agent), "agent").id if agent else None
        return await sessions_store.list_sessions(tx, position, limit, actor.sees, member_id, status, agent_id)


@verb(Permission.SESSION_WRITE)
async def update_session(db: Database, actor: Actor, id: UUID, change: SessionChange, revision: int | None) -> Session:
    async with db.transaction(actor.org_id) as tx:
        session_row = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        require_revision(session_row["revision"], revision)
        if session_row["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        await sessions_store.update_session(tx, id, change.title, change.context, actor)
        await proof_store.append_to_session(
            tx, id,
            [Fact.of(actor, "session_changed", title=change.title, context=change.context is not None)],
        )  # fmt: skip
        return require_found(await sessions_store.get_session(tx, id, None), "session")


async def suspended_sessions(db: Database) -> dict[UUID, int]:
    """How many sessions of each org wait for a person now. All orgs: for the platform's eyes only."""
    return await sessions_store.count_suspended(db)


async def end_approvals(tx: Transaction, session_id: UUID, job_ids: Sequence[UUID], actor: Actor, reason: str) -> None:
    """Nobody is asked any more about jobs that ended."""
    rows = await approvals_store.cancel_approvals(tx, job_ids, reason)
    if rows:
        await proof_store.append_to_session(
            tx,
            session_id,
            [
                Fact.of(actor, "approval_cancelled", approval=str(e["id"]), reason=reason).concerning(e["job_id"])
                for e in rows
            ],
            [("approval_cancelled", e["job_id"], {"approval_id": str(e["id"])}) for e in rows],
        )


TRIES = 3
REMEMBERED = 50_000
Sender = tuple[UUID, UUID, str]
"""An org, a connection and a name there."""

_checked: OrderedDict[Sender, sessions_store.CheckedMapping] = OrderedDict()
"""Mappings whose MAC this process has found true."""


@verb(Permission.MESSAGE_INGEST)
async def ingest_message(
    db: Database, actor: Actor, connection_id: UUID, inbound: InboundMessage, once: IdempotencyKey | None = None
) -> IngestedMessage:
    """Whoever wrote, and whatever exists already: afterwards the message is in a session with a job to read it."""
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
                actor.org_id,
                connection_id=connection_id,
                agent=split_ref(inbound.agent),
                external_user=inbound.external_user_id,
                display_name=inbound.display_name or inbound.external_user_id,
                metadata=inbound.metadata,
                text=inbound.text,
                title=title_from(inbound.text),
                ids=(account, mapping, session, job),
                bodies=tuple(fact.body for fact in facts),
                checked=_checked.get(sender),
                caller=actor.key_id,
                once=once,
            )
            break
        except Conflict as error:
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
        checked = await sessions_store.check_mapping(db, *sender)
    if checked is not None:
        _remember(sender, checked)


def _remember(sender: Sender, checked: sessions_store.CheckedMapping) -> None:
    _checked[sender] = checked
    _checked.move_to_end(sender)
    if len(_checked) > REMEMBERED:
        _checked.popitem(last=False)


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
    message = Fact.of(actor, "message_received", text_sha256=_digest(draft.text))
    creation = Fact.of(actor, "job_created", job=str(job))
    activation = Fact.of(actor, "session_activated")
    delivery = await sessions_store.post_message(
        db,
        actor.org_id,
        session_id=session_id,
        sees=actor.sees,
        text=draft.text,
        title=title_from(draft.text),
        author=actor.user_account_id,
        job=job,
        bodies=(message.body, creation.body, activation.body),
        caller=actor.key_id,
        once=once,
    )
    db.hints.work()
    return delivery


@verb(Permission.SESSION_READ)
async def list_messages(db: Database, actor: Actor, session_id: UUID, above: int, limit: int) -> list[Message]:
    """In the order they were said, after number ``above``."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await sessions_store.get_session(tx, session_id, actor.sees), "session")
        return await sessions_store.list_messages(tx, session_id, above, limit)


def _digest(text: str) -> str:
    """The trail proves what was said without keeping it twice."""
    return hashlib.sha256(text.encode()).hexdigest()


@verb(Permission.SESSION_READ)
async def list_memories(
    db: Database, actor: Actor, session_id: UUID, below: int | None, limit: int
) -> list[SessionMemory]:
    """The newest first, which is the one that the next job begins with; then those that it was made from."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await sessions_store.get_session(tx, session_id, actor.sees), "session")
        return await sessions_store.list_memories(tx, session_id, below, limit)


@verb(Permission.JOB_READ)
async def list_job_memories(db: Database, actor: Actor, job_id: UUID) -> Memory:
    """What a job itself remembers of what it no longer tells its model; empty where it tells everything."""
    async with db.transaction(actor.org_id) as tx:
        require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
        return await sessions_store.list_job_memories(tx, job_id)
