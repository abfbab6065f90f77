"""Atlases in SQL: their versions, and the sessions that are bound to them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from uuid import UUID

from cortex_plane.db.database import Database, Queries, Transaction, one
from cortex_plane.gates.model.atlas_versions import AtlasSummary, NumberedVersion
from cortex_plane.gates.model.atlases import Atlas
from cortex_plane.kernel.values import parse
from cortex_plane.tenancy.rules import Forged, Kind

queries = Queries(__file__)


async def lock(tx: Transaction, atlas_id: str) -> None:
    """Whoever changes this atlas waits until this transaction ends."""
    await tx.rows(queries.lock, tx.org, atlas_id)


async def insert(
    tx: Transaction,
    atlas: Atlas,
    source: str,
    manifest: str,
    warnings: Sequence[str],
    published_by: str,
    published_by_id: UUID | None,
) -> None:
    """Under the atlas's lock: its number is one more than the last."""
    await tx.rows(
        queries.insert, tx.org, atlas.atlas_id, atlas.version, atlas.digest, atlas.name, atlas.description,
        len(atlas.gates), source, manifest, list(warnings), atlas.steward.access, list(atlas.steward.api_keys),
        published_by, published_by_id,
    )  # fmt: skip


async def sign(tx: Transaction, version: NumberedVersion) -> None:
    """Its MAC, as it stands: published, or retired."""
    written = {
        "org_id": tx.org, "atlas_id": version.atlas_id, "version": version.version, "number": version.number,
        "digest": version.digest, "access": version.access, "api_keys": version.api_keys,
        "retired": version.retired_at is not None,
    }  # fmt: skip
    mac = tx.credential_key.mac(Kind.ATLAS_VERSION, written)
    await tx.rows(queries.sign, version.atlas_id, version.version, mac)


async def require_true(tx: Transaction, atlas_id: str, version: str) -> None:
    """Raises ``Forged`` where this version was not published by the plane, or a newer one not retired by it."""
    for row in await tx.rows(queries.require_true, atlas_id, version):
        if not tx.credential_key.is_true(Kind.ATLAS_VERSION, row, row["mac"]):
            raise Forged(Kind.ATLAS_VERSION, tx.org, f"{atlas_id} {row['version']}")


async def get(tx: Transaction, atlas_id: str) -> AtlasSummary | None:
    return one(AtlasSummary, await tx.row(queries.get, atlas_id))


async def list_page(tx: Transaction, above: str | None, limit: int) -> list[AtlasSummary]:
    return [parse(AtlasSummary, row) for row in await tx.rows(queries.list_page, above, limit)]


async def get_version(tx: Transaction, atlas_id: str, version: str) -> NumberedVersion | None:
    return one(NumberedVersion, await tx.row(queries.get_version, atlas_id, version))


async def list_versions(
    tx: Transaction, atlas_id: str, below: int | None, limit: int
) -> list[NumberedVersion]:
    rows = await tx.rows(queries.list_versions, atlas_id, below, limit)
    return [parse(NumberedVersion, row) for row in rows]


async def get_source(tx: Transaction, atlas_id: str, version: str) -> str | None:
    source: str | None = await tx.value(queries.get_source, atlas_id, version)
    return source


async def get_manifest(tx: Transaction, atlas_id: str, version: str) -> str | None:
    """In its canonical form: what its digest is over."""
    manifest: str | None = await tx.value(queries.get_manifest, atlas_id, version)
    return manifest


async def count_sessions(tx: Transaction, atlas_id: str, version: str, most: int) -> int:
    return int(await tx.value(queries.count_sessions, atlas_id, version, most))


async def retire(tx: Transaction, atlas_id: str, version: str, retired_by: str) -> bool:
    """False where it was retired before."""
    return await tx.value(queries.retire, atlas_id, version, retired_by) is not None


async def without_holder(tx: Transaction, atlas_ids: Sequence[str]) -> list[str]:
    """Those of which no version holds."""
    rows = await tx.rows(queries.without_holder, list(atlas_ids))
    return [atlas_ids[row["place"] - 1] for row in rows]


async def agents_naming(tx: Transaction, atlas_id: str, most: int) -> list[str]:
    return [row["slug"] for row in await tx.rows(queries.agents_naming, atlas_id, most)]


async def has_webhook(tx: Transaction, url: str) -> bool:
    """Whether an enabled webhook of the org has exactly this address."""
    return bool(await tx.value(queries.has_webhook, url))


async def unmatched_keys(tx: Transaction, globs: Sequence[str]) -> list[str]:
    """Those that no key fits which works today."""
    rows = await tx.rows(queries.unmatched_keys, list(globs))
    return [globs[row["place"] - 1] for row in rows]


# Sessions -------------------------------------------------------------------------------------------------------------


async def bind(tx: Transaction, session_id: UUID, atlas_ids: Sequence[str], *, by_caller: bool) -> None:
    """To the newest version of each that holds; what the session is bound to already stays as it is.

    ``by_caller``: somebody who writes no atlases chose them.
    """
    await tx.rows(queries.bind, tx.org, session_id, list(atlas_ids), by_caller)


async def bound_ids(tx: Transaction, session_id: UUID) -> list[str]:
    return [row["atlas_id"] for row in await tx.rows(queries.bound_ids, session_id)]


async def require_access(tx: Transaction, session_id: UUID, key_id: UUID, person: UUID | None) -> None:
    await tx.rows(queries.require_access, tx.org, session_id, key_id, person)


async def forget_minutes(db: Database, older: timedelta, limit: int) -> int:
    """Delete minutes of any org that were over longer ago than that; how many."""
    rows = await db.call("forget_atlas_minutes", None, older, limit)
    return int(rows[0]["forget_atlas_minutes"])
