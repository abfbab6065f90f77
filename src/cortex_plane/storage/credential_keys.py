"""The credential key in SQL: when credentials end, and how rows from before it get their MACs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime, timedelta
from typing import Final

from cortex_plane.domain.credential_keys import Kind
from cortex_plane.storage import policies
from cortex_plane.storage.database import NOBODY, Database, Row, Transaction
from cortex_plane.storage.queries import Queries

queries = Queries("credential_keys")

BATCH = 500
LOOKUPS: Final[Mapping[Kind, tuple[str, str]]] = {
    Kind.KEY: ("api_key", "secret_hash"),
    Kind.BROWSER_SESSION: ("browser_session", "secret_hash"),
    Kind.LOGIN_LINK: ("login_link", "secret_hash"),
    Kind.ENROLMENT_CODE: ("enrolment_code", "code_hash"),
    Kind.APPROVAL_TOKEN: ("approval_token", "token_hash"),
    Kind.IDENTITY_CODE: ("identity_code", "code_hash"),
}
"""The table of each kind of credential, and the column that it is found by."""


LIVE: Final = (*LOOKUPS, Kind.MAPPING)


def live(tx: Transaction, kind: Kind) -> AsyncIterator[Row]:
    """Every row of this kind that is not used, revoked or removed."""
    table = LOOKUPS[kind][0] if kind in LOOKUPS else "channel_mapping"
    return tx.stream(getattr(queries, f"live_{table}"))


def atlases(tx: Transaction) -> AsyncIterator[Row]:
    """Every version."""
    return tx.stream(queries.live_atlas_version)


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


async def convert_some(tx: Transaction) -> int:
    """Gives some rows of the org their lookups and MACs; how many. 0 where none is left."""
    converted = 0
    for kind in LOOKUPS:
        converted += await _convert_credentials(tx, kind)
    for convert in (convert_mappings, _convert_policies, _convert_atlases):
        converted += await convert(tx)
    return converted


async def _convert_credentials(tx: Transaction, kind: Kind) -> int:
    table, column = LOOKUPS[kind]
    key, rows = tx.credential_key, await tx.rows(getattr(queries, f"old_{table}"), BATCH)
    if not rows:
        return 0
    lookups = [key.lookup(row[column]) for row in rows]
    macs = [key.mac(kind, {**row, column: lookup}) for row, lookup in zip(rows, lookups, strict=True)]
    await tx.call("convert_credentials", tx.org, table, [row["id"] for row in rows], lookups, macs)
    return len(rows)


async def convert_mappings(tx: Transaction) -> int:
    rows = await tx.rows(queries.old_mappings, BATCH)
    macs = [tx.credential_key.mac(Kind.MAPPING, row) for row in rows]
    await tx.rows(queries.sign_mappings, [row["id"] for row in rows], macs)
    return len(rows)


async def _convert_policies(tx: Transaction) -> int:
    versions = [row["version"] for row in await tx.rows(queries.old_policies)]
    for version in versions:
        await policies.sign_version(tx, version)
    unsigned = await tx.value(queries.unsigned_policy_version, tx.org)
    if unsigned is not None:
        await policies.set_version(tx, unsigned)
    return len(versions) + (unsigned is not None)


async def _convert_atlases(tx: Transaction) -> int:
    rows = await tx.rows(queries.old_atlases, BATCH)
    macs = [tx.credential_key.mac(Kind.ATLAS_VERSION, row) for row in rows]
    ids, versions = [row["atlas_id"] for row in rows], [row["version"] for row in rows]
    await tx.rows(queries.sign_atlases, ids, versions, macs)
    return len(rows)


async def ends_after(tx: Transaction, life: timedelta) -> datetime:
    """When something ends that lives for so long from now. The MAC covers it, so it is known before the row is written."""
    now: datetime = await tx.value(queries.now)
    return now + life
