"""Atlases and the gate state of sessions in SQL."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.db.database import Database, Queries, Transaction, one
from cortex_plane.gates.model.atlases import Atlas, AtlasSummary, NumberedVersion
from cortex_plane.kernel.fields import parse
from cortex_plane.tenancy.rules import Forged, MacKind

queries = Queries("gates")


async def lock_atlas(tx: Transaction, atlas_id: str) -> None:
    """Whoever changes this atlas waits until this transaction ends."""
    await tx.rows(queries.lock_atlas, tx.org, atlas_id)


async def insert_atlas_version(
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
        queries.insert_atlas_version, tx.org, atlas.atlas_id, atlas.version, atlas.digest, atlas.name, atlas.description,
        len(atlas.gates), source, manifest, list(warnings), atlas.steward.access, list(atlas.steward.api_keys),
        published_by, published_by_id,
    )  # fmt: skip


async def sign_atlas_version(tx: Transaction, version: NumberedVersion) -> None:
    """Its MAC, as it stands: published, or retired."""
    written = {
        "org_id": tx.org, "atlas_id": version.atlas_id, "version": version.version, "number": version.number,
        "digest": version.digest, "access": version.access, "api_keys": version.api_keys,
        "retired": version.retired_at is not None,
    }  # fmt: skip
    mac = tx.credential_key.mac(MacKind.ATLAS_VERSION, written)
    await tx.rows(queries.sign_atlas_version, version.atlas_id, version.version, mac)


async def require_true_atlas(tx: Transaction, atlas_id: str, version: str) -> None:
    """Raises ``Forged`` where this version was not published by the plane, or a newer one not retired by it."""
    for row in await tx.rows(queries.require_true_atlas, atlas_id, version):
        if not tx.credential_key.is_true(MacKind.ATLAS_VERSION, row, row["mac"]):
            raise Forged(MacKind.ATLAS_VERSION, tx.org, f"{atlas_id} {row['version']}")


async def get_atlas(tx: Transaction, atlas_id: str) -> AtlasSummary | None:
    return one(AtlasSummary, await tx.row(queries.get_atlas, atlas_id))


async def list_atlases(tx: Transaction, above: str | None, limit: int) -> list[AtlasSummary]:
    return [parse(AtlasSummary, row) for row in await tx.rows(queries.list_atlases, above, limit)]


async def get_atlas_version(tx: Transaction, atlas_id: str, version: str) -> NumberedVersion | None:
    return one(NumberedVersion, await tx.row(queries.get_atlas_version, atlas_id, version))


async def list_atlas_versions(tx: Transaction, atlas_id: str, below: int | None, limit: int) -> list[NumberedVersion]:
    rows = await tx.rows(queries.list_atlas_versions, atlas_id, below, limit)
    return [parse(NumberedVersion, row) for row in rows]


async def get_atlas_source(tx: Transaction, atlas_id: str, version: str) -> str | None:
    source: str | None = await tx.value(queries.get_atlas_source, atlas_id, version)
    return source


async def get_atlas_manifest(tx: Transaction, atlas_id: str, version: str) -> str | None:
    """In its canonical form: what its digest is over."""
    manifest: str | None = await tx.value(queries.get_atlas_manifest, atlas_id, version)
    return manifest


async def count_atlas_sessions(tx: Transaction, atlas_id: str, version: str, most: int) -> int:
    return int(await tx.value(queries.count_atlas_sessions, atlas_id, version, most))


async def retire_atlas(tx: Transaction, atlas_id: str, version: str, retired_by: str) -> bool:
    """False where it was retired before."""
    return await tx.value(queries.retire_atlas, atlas_id, version, retired_by) is not None


async def capabilities_without_holder(tx: Transaction, atlas_ids: Sequence[str]) -> list[str]:
    """Those of which no version holds."""
    rows = await tx.rows(queries.capabilities_without_holder, list(atlas_ids))
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


async def bind_atlases(tx: Transaction, session_id: UUID, atlas_ids: Sequence[str], *, by_caller: bool) -> None:
    """To the newest version of each that holds; what the session is bound to already stays as it is. ``by_caller``:
    somebody who writes no atlases chose them."""
    await tx.rows(queries.bind_atlases, tx.org, session_id, list(atlas_ids), by_caller)


async def bound_atlas_ids(tx: Transaction, session_id: UUID) -> list[str]:
    return [row["atlas_id"] for row in await tx.rows(queries.bound_atlas_ids, session_id)]


async def require_atlas_access(tx: Transaction, session_id: UUID, key_id: UUID, person: UUID | None) -> None:
    await tx.rows(queries.require_atlas_access, tx.org, session_id, key_id, person)


async def forget_atlas_minutes(db: Database, older: timedelta, limit: int) -> int:
    """Delete minutes of any org that were over longer ago than that; how many."""
    rows = await db.call("forget_atlas_minutes", None, older, limit)
    return int(rows[0]["forget_atlas_minutes"])


async def bound_atlases(tx: Transaction, session_id: UUID) -> tuple[dict[str, Any] | None, datetime]:
    """The atlases of a session with the state of its gates, None where it has none; and the time."""
    (row,) = await tx.rows(queries.bound_atlases, tx.org, session_id)
    return row["bound"], row["now"]


async def lock_gates(tx: Transaction, session_id: UUID) -> None:
    """For a verb that has the lock of one of the session's jobs, before it tells anything: nobody overtakes it."""
    await tx.rows(queries.lock_gates, tx.org, session_id)


async def record_gates(tx: Transaction, session_id: UUID, gates: dict[str, Any]) -> None:
    """Under the lock of the session's job; a conflict where somebody else wrote since they were read."""
    await tx.rows(queries.record_gates, tx.org, session_id, gates)
