"""Sessions, messages, memories and events in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Queries, Row, Transaction, after, one, page
from cortex_plane.kernel.fields import parse
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.sessions.model.events import GATES, Event
from cortex_plane.sessions.model.sessions import (
    IngestedMessage,
    Memory,
    Message,
    Session,
    SessionKind,
    SessionMemory,
    SessionStatus,
)
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.rules import MacKind
from cortex_plane.tenancy.store.identities import mapping_mac

queries = Queries("sessions")


async def insert_session(
    tx: Transaction,
    id: UUID,
    kind: SessionKind,
    user_account_id: UUID | None,
    agent_id: UUID,
    title: str | None,
    context: dict[str, Any],
    opened_by: Actor,
) -> None:
    await tx.rows(
        queries.insert_session, tx.org, id, kind, user_account_id, agent_id, title, context, opened_by.key_id, opened_by.identity
    )  # fmt: skip


async def get_session(tx: Transaction, id: UUID, sees: UUID | None) -> Session | None:
    return one(Session, await tx.row(queries.get_session, id, sees))


async def lock_session(tx: Transaction, id: UUID, sees: UUID | None) -> Row | None:
    return await tx.row(queries.lock_session, id, sees)


async def list_sessions(
    tx: Transaction,
    position: Position | None,
    limit: int,
    sees: UUID | None,
    member_id: UUID | None,
    status: SessionStatus | None,
    agent_id: UUID | None,
) -> Page[Session]:
    rows = await tx.rows(queries.list_sessions, *after(position), limit + 1, sees, member_id, status, agent_id)
    return page(Session, rows, limit)


async def update_session(
    tx: Transaction, id: UUID, title: str | None, context: dict[str, Any] | None, by: Actor
) -> None:
    """Whoever writes the context is a cause of what its jobs ask for."""
    await tx.rows(queries.update_session, id, title, context, by.identity)


async def set_session_status(tx: Transaction, id: UUID, status: SessionStatus) -> None:
    await tx.rows(queries.set_session_status, id, status)


async def hold_session(tx: Transaction, id: UUID, reason: str) -> bool:
    return await tx.value(queries.hold_session, id, reason) is not None


async def release_session(tx: Transaction, id: UUID) -> bool:
    return await tx.value(queries.release_session, id) is not None


async def idle_session(db: Database, limit: int) -> list[tuple[UUID, UUID, datetime]]:
    """Sessions that somebody should look at because they may have gone idle, across orgs."""
    return [(r["org_id"], r["id"], r["due"]) for r in await db.call("find_idle_sessions", None, limit)]


async def went_idle(tx: Transaction, id: UUID) -> bool:
    return bool(await tx.value(queries.went_idle, id))


async def count_suspended(db: Database) -> dict[UUID, int]:
    """Across orgs: how many sessions of each have a job that waits for a person; those without any are left out."""
    return {row["org_id"]: row["sessions"] for row in await db.call("count_suspended_sessions", None)}


CheckedMapping = tuple[UUID, UUID]
"""The id and the member of a mapping whose MAC is true."""


async def ingest_message(
    db: Database,
    org: UUID,
    *,
    connection_id: UUID,
    agent: tuple[UUID | None, str | None],
    external_user: str,
    display_name: str,
    metadata: dict[str, Any],
    text: str,
    title: str,
    ids: tuple[UUID, UUID, UUID, UUID],
    bodies: tuple[bytes, ...],
    checked: CheckedMapping | None,
    caller: UUID,
    once: IdempotencyKey | None,
) -> IngestedMessage:
    """Ids are for account, mapping, session and job, audit bodies for account, session, message, job and activation. Raises
    ``Conflict`` (`mapping_unchecked`) where the sender has another mapping than the one that was ``checked``."""
    account, mapping, session, job = ids
    mac = mapping_mac(db.credential_key, org, mapping, connection_id, account, external_user)
    (row,) = await db.call(
        "ingest_message", org, connection_id, *agent, external_user, display_name, metadata, text, title,
        account, mapping, session, job, *bodies, mac, *(checked or (None, None)), caller, *_parts(once),
    )  # fmt: skip
    return parse(IngestedMessage, row)


async def check_mapping(db: Database, org: UUID, connection_id: UUID, sender: str) -> CheckedMapping | None:
    """Whose this sender is. Raises ``Forged`` where the row that says so is not the plane's."""
    rows = await db.call("verified_mapping", org, connection_id, sender)
    if not rows:
        return None
    (row,) = rows
    db.credential_key.require(MacKind.MAPPING, row, row["mac"])
    return row["id"], row["user_account_id"]


async def post_message(
    db: Database,
    org: UUID,
    *,
    session_id: UUID,
    sees: UUID | None,
    text: str,
    title: str,
    author: UUID | None,
    job: UUID,
    bodies: tuple[bytes, ...],
    caller: UUID,
    once: IdempotencyKey | None,
) -> IngestedMessage:
    (row,) = await db.call(
        "post_message", org, session_id, sees, text, title, author, job, *bodies, caller, *_parts(once)
    )
    return parse(IngestedMessage, row)


async def list_messages(tx: Transaction, session_id: UUID, above: int, limit: int) -> list[Message]:
    return [parse(Message, row) for row in await tx.rows(queries.list_messages, session_id, above, limit)]


def _parts(once: IdempotencyKey | None) -> tuple[str | None, bytes | None]:
    return (once.key, once.fingerprint) if once else (None, None)


async def list_memories(tx: Transaction, session_id: UUID, below: int | None, limit: int) -> list[SessionMemory]:
    rows = await tx.rows(queries.list_memories, session_id, below, limit)
    return [parse(SessionMemory, row) for row in rows]


async def list_job_memories(tx: Transaction, job_id: UUID) -> Memory:
    row = await tx.row(queries.list_job_memories, job_id)
    return Memory(row["summary"], tuple(row["facts"])) if row else Memory()


async def list_events_after(
    tx: Transaction, session_id: UUID, job_id: UUID | None, after: int, limit: int
) -> list[Event]:
    return [_event(row) for row in await tx.rows(queries.list_events_after, session_id, job_id, after, limit)]


async def latest_event(tx: Transaction, session_id: UUID) -> int:
    """The number of the session's last event."""
    return int(await tx.value(queries.latest_event, session_id) or 0)


async def fresh_events(tx: Transaction, cursors: Mapping[UUID, int], limit: int) -> list[tuple[UUID, Event]]:
    """What is new in these sessions, each with the number that is known; at most ``limit`` of each."""
    rows = await tx.rows(queries.fresh_events, list(cursors), list(cursors.values()), limit)
    return [(row["session_id"], _event(row)) for row in rows]


async def approval_events(tx: Transaction, seconds: float, limit: int) -> list[tuple[UUID, Event]]:
    """What happened to approvals anywhere in the org, lately."""
    return [(row["session_id"], _event(row)) for row in await tx.rows(queries.approval_events, float(seconds), limit)]


async def gate_events(tx: Transaction, session_id: UUID, job_id: UUID, after: int, limit: int) -> list[Event]:
    """What gates did in a job after number ``after``: the newest of it, in order."""
    rows = await tx.rows(queries.gate_events, tx.org, session_id, after, job_id, sorted(GATES), limit)
    return [_event(row) for row in reversed(rows)]


async def append_chunks(
    db: Database, org_id: UUID, job_id: UUID, worker_id: UUID, epoch: int, step: int, texts: Sequence[str]
) -> bool:
    """False: the job is not this worker's any more, or the step is recorded."""
    rows = await db.call("append_chunks", org_id, job_id, worker_id, epoch, step, list(texts))
    return bool(rows[0]["append_chunks"])


async def void_chunks(db: Database, org_id: UUID, job_id: UUID, epoch: int, step: int) -> None:
    """What an attempt told of a step that it did not finish is void."""
    await db.call("void_chunks", org_id, job_id, epoch, step)


async def drop_chunks(db: Database, org_id: UUID, job_id: UUID, step: int) -> bool:
    """Delete what is durable elsewhere; whether nothing of this step is left."""
    rows = await db.call("drop_chunks", org_id, job_id, step)
    return bool(rows[0]["drop_chunks"])


async def forget_chunks(db: Database, limit: int) -> int:
    """Delete chunks of any org that are an hour old; how many."""
    rows = await db.call("forget_chunks", None, limit)
    return int(rows[0]["forget_chunks"])


def _event(row: Row) -> Event:
    return Event(seq=row["seq"], type=row["type"], job_id=row["job_id"], data=row["data"], created_at=row["created_at"])
