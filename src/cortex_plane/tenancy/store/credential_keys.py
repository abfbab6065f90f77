"""The credential key in SQL: when credentials end, which rows have MACs, and how rows from before it get theirs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from uuid import UUID

from cortex_plane.db.database import NOBODY, Database, Row, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.tenancy.rules.credential_keys import Kind

queries = Queries(__file__)

BATCH = 500


async def now(tx: Transaction) -> datetime:
    at: datetime = await tx.value(queries.now)
    return at


async def ends_after(tx: Transaction, life: timedelta) -> datetime:
    """When something ends that lives for so long from now. The MAC covers it, so it is known before the row is written."""
    return await now(tx) + life


# The key --------------------------------------------------------------------------------------------------------------


async def is_converted(db: Database) -> bool:
    """Whether rows from before the credential key have their MACs. False where there is no key yet."""
    async with db.transaction(NOBODY) as tx:
        return bool(await tx.value(queries.is_converted))


async def set_converted(db: Database) -> None:
    """From now on a row without a MAC is worth nothing. Nothing takes this back."""
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.set_converted)


async def sealed(db: Database) -> bytes:
    async with db.transaction(NOBODY) as tx:
        kept: bytes = await tx.value(queries.sealed)
    return kept


async def reseal(db: Database, sealed: bytes) -> None:
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.reseal, sealed)


# Rows with a MAC ------------------------------------------------------------------------------------------------------
# ``unsigned``: only those that have none. `live` says whether a row is in use: not revoked, used or removed.


def api_keys(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.api_keys, unsigned, limit)


def browser_sessions(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.browser_sessions, unsigned, limit)


def login_links(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.login_links, unsigned, limit)


def enrolment_codes(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.enrolment_codes, unsigned, limit)


def approval_tokens(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.approval_tokens, unsigned, limit)


def identity_codes(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.identity_codes, unsigned, limit)


def mappings(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.mappings, unsigned, limit)


def atlas_versions(tx: Transaction, unsigned: bool, limit: int | None) -> AsyncIterator[Row]:
    return tx.stream(queries.atlas_versions, unsigned, limit)


Rows = Callable[[Transaction, bool, int | None], AsyncIterator[Row]]

CREDENTIALS: Final[Mapping[Kind, tuple[Rows, str, str]]] = {
    Kind.KEY: (api_keys, "api_key", "secret_hash"),
    Kind.BROWSER_SESSION: (browser_sessions, "browser_session", "secret_hash"),
    Kind.LOGIN_LINK: (login_links, "login_link", "secret_hash"),
    Kind.ENROLMENT_CODE: (enrolment_codes, "enrolment_code", "code_hash"),
    Kind.APPROVAL_TOKEN: (approval_tokens, "approval_token", "token_hash"),
    Kind.IDENTITY_CODE: (identity_codes, "identity_code", "code_hash"),
}
"""The rows of each kind of credential, their table, and the column that they are found by."""

PEOPLE: Final[Mapping[Kind, Rows]] = {
    **{kind: rows for kind, (rows, _, _) in CREDENTIALS.items()},
    Kind.MAPPING: mappings,
}
"""Whatever leads to a person."""


# Conversion -----------------------------------------------------------------------------------------------------------


async def convert_some(tx: Transaction) -> int:
    """Gives some rows of the org their lookups and MACs, but for policies; how many. 0 where none is left."""
    converted = 0
    for kind in CREDENTIALS:
        converted += await _convert_credentials(tx, kind)
    for convert in (convert_mappings, _convert_atlases):
        converted += await convert(tx)
    return converted


async def _convert_credentials(tx: Transaction, kind: Kind) -> int:
    found, table, column = CREDENTIALS[kind]
    key, rows = tx.credential_key, [row async for row in found(tx, True, BATCH)]
    if not rows:
        return 0
    lookups = [key.lookup(row[column]) for row in rows]
    macs = [key.mac(kind, {**row, column: lookup}) for row, lookup in zip(rows, lookups, strict=True)]
    await tx.call("convert_credentials", tx.org, table, [row["id"] for row in rows], lookups, macs)
    return len(rows)


async def convert_mappings(tx: Transaction) -> int:
    rows = [row async for row in mappings(tx, True, BATCH)]
    macs = [tx.credential_key.mac(Kind.MAPPING, row) for row in rows]
    await sign_mappings(tx, [row["id"] for row in rows], macs)
    return len(rows)


async def sign_mappings(tx: Transaction, ids: Sequence[UUID], macs: Sequence[bytes]) -> None:
    await tx.rows(queries.sign_mappings, ids, macs)


async def unsigned_policies(tx: Transaction) -> list[int]:
    return [row["version"] for row in await tx.rows(queries.unsigned_policies)]


async def unsigned_policy_version(tx: Transaction) -> int | None:
    """The version in force, where nothing says who put it there."""
    version: int | None = await tx.value(queries.unsigned_policy_version, tx.org)
    return version


async def _convert_atlases(tx: Transaction) -> int:
    rows = [row async for row in atlas_versions(tx, True, BATCH)]
    macs = [tx.credential_key.mac(Kind.ATLAS_VERSION, row) for row in rows]
    await sign_atlases(tx, rows, macs)
    return len(rows)


async def sign_atlases(tx: Transaction, rows: Sequence[Row], macs: Sequence[bytes]) -> None:
    ids, versions = [row["atlas_id"] for row in rows], [row["version"] for row in rows]
    await tx.rows(queries.sign_atlases, ids, versions, macs)
