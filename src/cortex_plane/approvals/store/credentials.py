"""Tokens and signing secrets in SQL. Of a token only its lookup is written; a secret is sealed before it comes here."""

from __future__ import annotations

from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.approvals.model.credentials import Token
from cortex_plane.db.database import Database, Queries, Row, Transaction, ids
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.rules import Kind
from cortex_plane.tenancy.store import credentials as credentials_store

queries = Queries(__file__)

CALLBACK = "callback"
"""The purpose of the secrets that sign links."""


async def open_token(db: Database, token_hash: bytes) -> tuple[Token, Actor | None] | None:
    """What a token decides, and who it was sent to; None where there is no such person any more. Raises ``Forged`` where its
    row is not the plane's."""
    key = db.credential_key
    lookup = key.lookup(token_hash)
    rows = await db.call("open_approval_token", None, lookup)
    if not rows:
        return None
    (row,) = rows
    key.require(
        Kind.APPROVAL_TOKEN, {**row, "user_account_id": row["member_id"], "token_hash": lookup}, row["mac"]
    )
    return parse(Token, row), _person(row, row["id"])


async def open_link(db: Database, approval_id: UUID, operator_id: UUID) -> Row | None:
    """What a link must fit (deadline, template, time), whom it names, and the sealed secrets that may have signed it."""
    rows = await db.call("open_approval_link", None, approval_id, operator_id, CALLBACK)
    return rows[0] if rows else None


def operator(row: Row, secret_id: UUID) -> Actor | None:
    """The person that a link names, where there still is one."""
    return _person(row, secret_id)


def _person(row: Row, credential_id: UUID) -> Actor | None:
    if not row["active"]:
        return None
    return credentials_store.session_person(row["org_id"], credential_id, row["member_id"], row["name"], row)


async def insert_token(
    tx: Transaction, id: UUID, *, approval_id: UUID, member_id: UUID, notification_id: UUID | None,
    token_hash: bytes, version: int, input_hash: str, expires_at: datetime,
) -> None:  # fmt: skip
    lookup = tx.credential_key.lookup(token_hash)
    written = {
        "org_id": tx.org, "id": id, "user_account_id": member_id, "approval_id": approval_id, "version": version,
        "input_hash": input_hash, "expires_at": expires_at, "token_hash": lookup,
    }  # fmt: skip
    await tx.rows(
        queries.insert_token, tx.org, id, approval_id, member_id, notification_id, lookup, version, input_hash,
        expires_at, tx.credential_key.mac(Kind.APPROVAL_TOKEN, written),
    )  # fmt: skip


async def forget_tokens(tx: Transaction, keep: timedelta) -> None:
    """Drop those that were over so long ago."""
    await tx.rows(queries.forget_tokens, keep)


async def void_tokens(tx: Transaction, member_id: UUID) -> list[UUID]:
    """Every token that was sent to this member and that nobody used; which ones."""
    return ids(await tx.rows(queries.void_tokens, member_id))


async def current_secret(tx: Transaction, purpose: str) -> Row | None:
    """Sealed; None where none was ever needed."""
    return await tx.row(queries.current_secret, purpose)


async def insert_secret(tx: Transaction, id: UUID, purpose: str, sealed: bytes) -> datetime | None:
    """None where there is a current one."""
    made_at: datetime | None = await tx.value(queries.insert_secret, tx.org, id, purpose, sealed)
    return made_at


async def retire_secret(
    tx: Transaction, purpose: str, older_than: timedelta, grace: timedelta
) -> datetime | None:
    """The current one is accepted until then; None where it is younger, or there is none."""
    retire_at: datetime | None = await tx.value(queries.retire_secret, purpose, older_than, grace)
    return retire_at


async def forget_secrets(tx: Transaction, purpose: str, within: timedelta) -> None:
    """Drop the retired ones whose time is over, or is ``within`` so long."""
    await tx.rows(queries.forget_secrets, purpose, within)


async def find_old(db: Database, rotate_after: timedelta, keep_tokens: timedelta, limit: int) -> list[UUID]:
    """The orgs for which a keeper has something to do."""
    rows = await db.call("find_old_credentials", None, rotate_after, keep_tokens, limit)
    return [row["org_id"] for row in rows]
