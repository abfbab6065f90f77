"""Compiled atlases, kept by what is in them, so that gates are evaluated without asking the database."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates.model.atlases import Atlas
from cortex_plane.gates.rules.gate_index import CompiledAtlases
from cortex_plane.gates.store import atlases
from cortex_plane.gates.verbs.atlas_weights import weight_of, weight_of_index
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.manifest_threads import loading
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.verbs.access import report_forgery
from cortex_plane.tenancy.verbs.frame import require_found

ATLAS_CORRUPT = "atlas_corrupt"

Key = tuple[UUID, tuple[str, ...]]
"""An org, and the digests of the atlases that are merged, in the order of their ids."""
One = tuple[UUID, str]
"""An org, and the digest of one of its atlases."""
Pins = Sequence[Mapping[str, Any]]
"""What a session is bound to: `atlas_id`, `version` and `digest` of each."""


class Kept(NamedTuple):
    atlas: Atlas
    weight: int
    """Bytes of memory that it takes, about."""


class Stored(NamedTuple):
    """An atlas as a row has it."""

    manifest: bytes
    digest: str
    name: str
    """Which one it is, for people."""


class Loaded(NamedTuple):
    compiled: CompiledAtlases
    parts: tuple[Kept, ...]
    weight: int
    """Bytes of memory that it takes beside its parts, about."""


class AtlasCache:
    """The atlases that were asked for last, up to so many sets and about so many bytes of memory.

    An atlas that is in several sets is here once.
    """

    def __init__(self, *, max_entries: int = 500, max_bytes: int = 512 * 1024 * 1024) -> None:
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: OrderedDict[Key, Loaded] = OrderedDict()
        self._atlases: dict[One, Kept] = {}
        self._uses: Counter[One] = Counter()
        """In how many sets each of them is."""
        self._loading: dict[Key, asyncio.Task[Loaded]] = {}

    @property
    def weight(self) -> int:
        """Bytes of memory that it takes, about."""
        return self._bytes

    def known(self, org_id: UUID, pins: Pins) -> CompiledAtlases | None:
        """What is here already."""
        key = _key(org_id, pins)
        kept = self._known.get(key)
        if kept is None:
            return None
        self._known.move_to_end(key)
        return kept.compiled

    async def at(self, db: Database, org_id: UUID, pins: Pins) -> CompiledAtlases:
        """The atlases of one session as one. Several who ask at once load them once.

        Raises ``Conflict`` (`atlas_corrupt`) where what is kept is not what was published.
        """
        kept = self.known(org_id, pins)
        if kept is not None:
            return kept
        key = _key(org_id, pins)
        task = self._loading.get(key)
        if task is None or task.get_loop() is not asyncio.get_running_loop():
            task = self._loading[key] = asyncio.create_task(self._load(db, org_id, _ordered(pins)))
            task.add_done_callback(lambda done: self._loaded(key, done))
        # Whoever stops waiting does not take it away from the others.
        return (await asyncio.shield(task)).compiled

    async def _load(self, db: Database, org_id: UUID, pins: Pins) -> Loaded:
        parts: list[Kept | Stored] = []
        try:
            async with db.transaction(org_id) as tx:
                for pin in pins:
                    parts.append(self._atlases.get((org_id, pin["digest"])) or await _stored(tx, pin))
        except Forged as forged:
            await report_forgery(db, forged)
            raise _not_published(forged) from None
        return await loading.run(_merged, parts)

    def _loaded(self, key: Key, done: asyncio.Task[Loaded]) -> None:
        if self._loading.get(key) is done:
            del self._loading[key]
        if done.cancelled() or done.exception() is not None or key in self._known:
            return
        new = self._known[key] = done.result()
        self._bytes += new.weight
        for one, kept in _ones(key, new):
            self._uses[one] += 1
            if self._uses[one] == 1:
                self._atlases[one] = kept
                self._bytes += kept.weight
        while len(self._known) > 1 and (
            len(self._known) > self._max_entries or self._bytes > self._max_bytes
        ):
            self._forget(*self._known.popitem(last=False))

    def _forget(self, key: Key, old: Loaded) -> None:
        self._bytes -= old.weight
        for one, kept in _ones(key, old):
            self._uses[one] -= 1
            if not self._uses[one]:
                del self._uses[one], self._atlases[one]
                self._bytes -= kept.weight


def _ones(key: Key, loaded: Loaded) -> Iterator[tuple[One, Kept]]:
    org_id, digests = key
    for digest, kept in zip(digests, loaded.parts, strict=True):
        yield (org_id, digest), kept


def _ordered(pins: Pins) -> list[Mapping[str, Any]]:
    return sorted(pins, key=lambda pin: str(pin["atlas_id"]))


def _key(org_id: UUID, pins: Pins) -> Key:
    return org_id, tuple(pin["digest"] for pin in _ordered(pins))


async def _stored(tx: Transaction, pin: Mapping[str, Any]) -> Stored:
    atlas_id, version = pin["atlas_id"], pin["version"]
    await atlases.require_true(tx, atlas_id, version)
    return Stored(await manifest_of(tx, atlas_id, version), pin["digest"], f"{atlas_id} {version}")


def _not_published(forged: Forged) -> Conflict:
    return Conflict(
        f"The atlas {forged.id} was not published, or not retired, by the plane: its MAC is false.",
        code=ATLAS_CORRUPT,
        hint="Look at `cortex audit verify`. Restore the rows of this atlas in `atlas_version` from a backup, or publish a new"
        " version: new sessions are bound to that.",
    )


async def manifest_of(tx: Transaction, atlas_id: str, version: str) -> bytes:
    return require_found(await atlases.get_manifest(tx, atlas_id, version), "atlas_version").encode()


def _merged(parts: Sequence[Kept | Stored]) -> Loaded:
    """All that would be made at its first use is made here, where it holds up nobody."""
    kept = tuple(each if isinstance(each, Kept) else _kept(each) for each in parts)
    compiled = CompiledAtlases([each.atlas for each in kept])
    compiled.prepare()
    return Loaded(compiled, kept, weight_of_index(compiled))


def _kept(stored: Stored) -> Kept:
    atlas = read_back(stored.manifest, stored.digest, stored.name)
    return Kept(atlas, weight_of(atlas))


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
