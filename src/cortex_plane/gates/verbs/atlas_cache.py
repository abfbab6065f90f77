"""Compiled atlases in memory."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model.atlases import Atlas
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.store import queries
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.shares import LruCache, SharedLoads, loading
from cortex_plane.tenancy.model.access import Forged
from cortex_plane.tenancy.verbs.frame import report_forgery, require_found

ATLAS_CORRUPT = "atlas_corrupt"

CacheKey = tuple[UUID, tuple[str, ...]]
"""An org, and the digests of the atlases that are merged, in the order of their ids."""
Pins = Sequence[Mapping[str, Any]]
"""What a session is bound to: `atlas_id`, `version` and `digest` of each."""


class StoredAtlas(NamedTuple):
    """An atlas as a row has it."""

    manifest: bytes
    digest: str
    name: str
    """Which one it is, for people."""


class CachedAtlas(NamedTuple):
    atlas: Atlas
    size: int
    """Bytes of its manifest."""


class CachedSet(NamedTuple):
    compiled: CompiledAtlases
    parts: tuple[CachedAtlas, ...]

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)


class AtlasCache:
    """The sets of atlases that were used last, up to a number of sets and of bytes of their manifests."""

    def __init__(self, *, max_entries: int = 500, max_bytes: int = 64 * 1024 * 1024) -> None:
        self._sets = LruCache[CacheKey, CachedSet](max_size=max_bytes, max_entries=max_entries)
        self._loads = SharedLoads[CacheKey, CachedSet]()

    def known(self, org_id: UUID, pins: Pins) -> CompiledAtlases | None:
        """What is here already."""
        entry = self._sets.get(_cache_key(org_id, pins))
        return None if entry is None else entry.compiled

    async def at(self, db: Database, org_id: UUID, pins: Pins) -> CompiledAtlases:
        """The atlases of one session as one. Several callers at once load them once. Raises ``Conflict``
        (`atlas_corrupt`) where the row is not what was published."""
        key = _cache_key(org_id, pins)
        entry = self._sets.get(key) or await self._loads.run(
            key, lambda: self._load(db, org_id, _in_order(pins)), lambda entry: self._sets.put(key, entry, entry.size)
        )
        return entry.compiled

    async def _load(self, db: Database, org_id: UUID, pins: Pins) -> CachedSet:
        parts: list[CachedAtlas | StoredAtlas] = []
        try:
            async with db.transaction(org_id) as tx:
                for pin in pins:
                    parts.append(self._find(org_id, pin["digest"]) or await _stored(tx, pin))
        except Forged as forgery:
            await report_forgery(db, forgery)
            raise _not_published(forgery) from None
        return await loading.run(merge, parts)

    def _find(self, org_id: UUID, digest: str) -> CachedAtlas | None:
        """An atlas of another set: it is in memory once."""
        for (org, digests), entry in self._sets.items():
            if org == org_id and digest in digests:
                return entry.parts[digests.index(digest)]
        return None


def _in_order(pins: Pins) -> list[Mapping[str, Any]]:
    return sorted(pins, key=lambda pin: str(pin["atlas_id"]))


def _cache_key(org_id: UUID, pins: Pins) -> CacheKey:
    return org_id, tuple(pin["digest"] for pin in _in_order(pins))


async def _stored(tx: Transaction, pin: Mapping[str, Any]) -> StoredAtlas:
    atlas_id, version = pin["atlas_id"], pin["version"]
    await gates_store.require_true_atlas(tx, atlas_id, version)
    return StoredAtlas(await manifest_of(tx, atlas_id, version), pin["digest"], f"{atlas_id} {version}")


def _not_published(forgery: Forged) -> Conflict:
    return Conflict(
        f"The atlas {forgery.id} was not published, or not retired, by the plane: its MAC is false.",
        code=ATLAS_CORRUPT,
        hint="Look at `cortex audit verify`. Restore the rows of this atlas in `atlas_version` from a backup, or publish a new"
        " version: new sessions are bound to that.",
    )


async def manifest_of(tx: Transaction, atlas_id: str, version: str) -> bytes:
    """In its canonical form: what its digest is over."""
    manifest: str | None = await tx.value(queries.get_atlas_manifest, atlas_id, version)
    return require_found(manifest, "atlas_version").encode()


def merge(parts: Sequence[CachedAtlas | StoredAtlas]) -> CachedSet:
    """Everything that the first use would compile is compiled here, in a thread."""
    entries = tuple(
        part if isinstance(part, CachedAtlas) else CachedAtlas(read_back(*part), len(part.manifest)) for part in parts
    )
    atlases = CompiledAtlases([part.atlas for part in entries])
    atlases.prepare()
    return CachedSet(atlases, entries)


def read_back(manifest: bytes, digest: str, name: str) -> Atlas:
    """An atlas as it was published, and nothing else: whoever changed its row changed what sessions are bound to."""
    if hashlib.sha256(manifest).hexdigest() != digest:
        raise Conflict(
            f"What is kept of the atlas {name} is not what was published: its digest is not {digest}.",
            code="atlas_corrupt",
            hint="Restore the row of this version in `atlas_version` from a backup: sessions that are bound to it go no further"
            " without it. New sessions may be bound to a new version instead.",
        )
    from cortex_plane.gates.files.atlases import compiled  # most sessions have no atlas

    return compiled(manifest)


book = AtlasCache()
"""What this process has compiled."""


MINUTES_KEPT = timedelta(hours=1)
FORGOTTEN_AT_ONCE = 10_000


async def forget_minutes(db: Database) -> None:
    """Minutes that no limit counts any more."""
    while await gates_store.forget_atlas_minutes(db, MINUTES_KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass
