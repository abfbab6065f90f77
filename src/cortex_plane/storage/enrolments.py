"""Enrolment codes in SQL. Of a code only its digest is written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.domain.access import Actor
from cortex_plane.domain.enrolments import Enrolment
from cortex_plane.storage.database import Database, Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import one

queries = Queries("enrolments")


async def resolve(db: Database, code_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a code."""
    rows = await db.call("resolve_enrolment_code", None, code_hash)
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def insert(
    tx: Transaction, id: UUID, member_id: UUID, code_hash: bytes, issuer: Actor, life: timedelta
) -> datetime:
    expires_at: datetime = await tx.value(
        queries.insert, tx.org, id, member_id, code_hash, issuer.identity, issuer.name, issuer.key_id, life
    )
    return expires_at


async def void(tx: Transaction, member_id: UUID) -> None:
    """Every code that this member has not redeemed."""
    await tx.rows(queries.void, member_id)


async def end_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> None:
    """Every code that was made with these keys and that nobody has redeemed."""
    await tx.rows(queries.end_of_keys, key_ids)


async def show(tx: Transaction, id: UUID) -> Enrolment | None:
    return one(Enrolment, await tx.row(queries.show, id))


async def use(tx: Transaction, id: UUID) -> UUID | None:
    """Whoever handed it over; None where it was used, or is too old."""
    issuer_id: UUID | None = await tx.value(queries.use, id)
    return issuer_id
