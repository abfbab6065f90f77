"""Enrolment codes in SQL. Of a code only its lookup is written."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import ids, one
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.model.enrolments import Enrolment
from cortex_plane.tenancy.rules.credential_keys import Kind
from cortex_plane.tenancy.store.credential_keys import ends_after

queries = Queries(__file__)


async def resolve(db: Database, code_hash: bytes) -> tuple[UUID, UUID] | None:
    """The org and the id of a code."""
    rows = await db.call("resolve_enrolment_code", None, db.credential_key.lookup(code_hash))
    return (rows[0]["org_id"], rows[0]["id"]) if rows else None


async def insert(
    tx: Transaction, id: UUID, member_id: UUID, code_hash: bytes, issuer: Actor, life: timedelta
) -> datetime:
    expires_at = await ends_after(tx, life)
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "issuer_id": issuer.identity,
        "key_id": issuer.key_id, "expires_at": expires_at, "code_hash": tx.credential_key.lookup(code_hash),
    }  # fmt: skip
    await tx.rows(
        queries.insert, tx.org, id, member_id, written["code_hash"], issuer.identity, issuer.name,
        issuer.key_id, expires_at, tx.credential_key.mac(Kind.ENROLMENT_CODE, written),
    )  # fmt: skip
    return expires_at


async def void(tx: Transaction, member_id: UUID) -> list[UUID]:
    """Every code that this member has not redeemed; which ones."""
    return ids(await tx.rows(queries.void, member_id))


async def end_of_keys(tx: Transaction, key_ids: Sequence[UUID]) -> list[UUID]:
    """Every code that was made with these keys and that nobody has redeemed; which ones."""
    return ids(await tx.rows(queries.end_of_keys, key_ids))


async def show(tx: Transaction, id: UUID) -> Enrolment | None:
    """Raises ``Forged`` where the row of the code is not the plane's."""
    row = await tx.row(queries.show, id)
    if row is not None:
        tx.credential_key.require(Kind.ENROLMENT_CODE, row, row["mac"])
    return one(Enrolment, row)


async def use(tx: Transaction, id: UUID) -> UUID | None:
    """Whoever handed it over; None where it was used, or is too old."""
    issuer_id: UUID | None = await tx.value(queries.use, id)
    return issuer_id
