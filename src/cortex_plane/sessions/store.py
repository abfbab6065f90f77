"""Sessions, messages, memories and events in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.db.database import Database, Queries, Row, Transaction, one
from cortex_plane.kernel.fields import parse, split_ref
from cortex_plane.kernel.ids import IdempotencyKey
from cortex_plane.kernel.text import redact
from cortex_plane.sessions.model import sessions as session_model
from cortex_plane.sessions.model.events import GATES, Event
from cortex_plane.tenancy.model.access import Actor, Fact, MacKind
from cortex_plane.tenancy.store import mapping_mac

queries = Queries("sessions")


async def insert_session(
    tx: Transaction,
    id: UUID,
    kind: session_model.SessionKind,
    user_account_id: UUID | None,
    agent_id: UUID,
    title: str | None,
    context: dict[str, Any],
    opened_by: Actor,
    status: session_model.SessionStatus = session_model.SessionStatus.CREATED,
    outside_id: str | None = None,
    on_behalf: bool = False,
) -> None:
    """``on_behalf``: the actor is a service that opens it for the person."""
    await tx.rows(
        queries.insert_session, tx.org, id, kind, user_account_id, agent_id, title, context, opened_by.key_id,
        opened_by.identity, status, outside_id, opened_by.key_id if on_behalf else None,
    )  # fmt: skip


async def get_session(tx: Transaction, id: UUID, sees: UUID | None) -> session_model.Session | None:
    return one(session_model.Session, await tx.row(queries.get_session, id, sees))


async def lock_session(tx: Transaction, id: UUID, sees: UUID | None) -> Row | None:
    return await tx.row(queries.lock_session, id, sees)


async def set_session_status(tx: Transaction, id: UUID, status: session_model.SessionStatus) -> None:
    await tx.rows(queries.set_session_status, id, status)


async def hold_session(tx: Transaction, id: UUID, source: str, reason: str) -> datetime | None:
    """Since when it is held; None where the same source holds it already."""
    held_at: datetime | None = await tx.value(queries.hold_session, id, source, reason)
    return held_at


async def release_session(tx: Transaction, id: UUID, source: str | None) -> datetime | None:
    """``source``: whose hold is lifted; None for all. When nothing holds it any more; None where something does."""
    released_at: datetime | None = await tx.value(queries.release_session, id, source)
    return released_at


async def add_operator_words(tx: Transaction, job_id: UUID, text: str, actor: Actor) -> int | None:
    """The number of the message that the model of a job reads at its next boundary; None where it has no model."""
    key = None if actor.user_account_id else actor.key_id
    seq: int | None = await tx.value(queries.add_operator_words, tx.org, job_id, text, actor.user_account_id, key)
    tx.has_events = tx.has_events or seq is not None
    return seq


async def went_idle(tx: Transaction, id: UUID) -> datetime | None:
    """When it went idle: now; None where it did not."""
    went_at: datetime | None = await tx.value(queries.went_idle, id)
    return went_at


CheckedMapping = tuple[UUID, UUID]
"""The id and the member of a mapping whose MAC is true."""


async def ingest_message(
    db: Database,
    actor: Actor,
    connection_id: UUID,
    inbound: session_model.InboundMessage,
    ids: tuple[UUID, UUID, UUID, UUID],
    facts: Sequence[Fact],
    checked: CheckedMapping | None,
    once: IdempotencyKey | None,
    chat_id: UUID | None = None,
) -> session_model.IngestedMessage:
    """Ids are for account, mapping, session and job, audit entries for account, session, message, job and activation. Raises
    ``Conflict`` (`mapping_unchecked`) where the sender has another mapping than the one that was ``checked``."""
    sender, text = inbound.external_user_id, inbound.text
    mac = mapping_mac(db.credential_key, actor.org_id, ids[1], connection_id, ids[0], sender)
    (row,) = await db.call(
        "ingest_message", actor.org_id, connection_id, *split_ref(inbound.agent), sender, inbound.display_name or sender,
        inbound.metadata, text, session_model.title_from(text), *ids, *[fact.body for fact in facts], mac,
        *(checked or (None, None)), actor.key_id, *_parts(once), chat_id,
    )  # fmt: skip
    return parse(session_model.IngestedMessage, row)


async def check_mapping(db: Database, org: UUID, connection_id: UUID, sender: str) -> CheckedMapping | None:
    """Whose this sender is. Raises ``Forged`` where the row that says so is not the plane's."""
    rows = await db.call("verified_mapping", org, connection_id, sender)
    if not rows:
        return None
    (row,) = rows
    db.credential_key.require(MacKind.MAPPING, row, row["mac"])
    return row["id"], row["user_account_id"]


async def post_message(
    db: Database, actor: Actor, session_id: UUID, text: str, job: UUID, facts: Sequence[Fact], once: IdempotencyKey | None
) -> session_model.IngestedMessage:  # fmt: skip
    (row,) = await db.call(
        "post_message", actor.org_id, session_id, actor.sees, text, session_model.title_from(text), actor.user_account_id,
        job, *[fact.body for fact in facts], actor.key_id, *_parts(once),
    )  # fmt: skip
    return parse(session_model.IngestedMessage, row)


def _parts(once: IdempotencyKey | None) -> tuple[str | None, bytes | None]:
    return (once.key, once.fingerprint) if once else (None, None)


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


SHOWN_INPUT = 8000
"""Characters of the input of a call in an event."""


async def read_state(tx: Transaction, session_id: UUID) -> session_model.SessionState:
    """Raises ``Forged`` where the row is not as the plane wrote it."""
    row = await tx.row(queries.get_session_state, session_id)
    if row is None:
        return session_model.SessionState(version=0, text=None, saved_at=None)
    tx.credential_key.require(MacKind.SESSION_STATE, row, row["mac"])
    return session_model.SessionState(version=row["version"], text=row["text"], saved_at=row["saved_at"])


async def save_state(
    tx: Transaction, session_id: UUID, draft: session_model.SessionStateDraft
) -> session_model.SessionState | None:
    """None where the version to replace is not the current one."""
    version = draft.replaces + 1
    fields = {"org_id": tx.org, "id": session_id, "version": version, "text": draft.text}
    mac = tx.credential_key.mac(MacKind.SESSION_STATE, fields)
    written = await tx.value(queries.save_session_state, tx.org, session_id, version, draft.text, mac)
    return None if written is None else await read_state(tx, session_id)


def _event(row: Row) -> Event:
    data = row["data"]
    if "input" in data:
        data = {**data, **_shown_input(data["input"], row["redact"] or ())}
    return Event(seq=row["seq"], type=row["type"], job_id=row["job_id"], data=data, created_at=row["created_at"])


def _shown_input(value: Any, names: Sequence[str]) -> dict[str, Any]:
    """Redacted; of what is too long for an event the beginning, as a text."""
    value = redact(value, names)
    text = orjson.dumps(value).decode()
    return {"input": value} if len(text) <= SHOWN_INPUT else {"input": text[:SHOWN_INPUT], "truncated": True}
