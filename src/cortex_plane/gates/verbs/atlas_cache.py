"""Compiled atlases in memory, bounded by weight, and the minutes of sessions with them."""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter, OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from sys import getsizeof
from typing import Any, NamedTuple
from uuid import UUID

from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model.atlases import Atlas, Gate, Question
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.errors import Conflict
from cortex_plane.kernel.shares import loading
from cortex_plane.tenancy.rules import Forged
from cortex_plane.tenancy.verbs.access import report_forgery
from cortex_plane.tenancy.verbs.frame import require_found

ATLAS_CORRUPT = "atlas_corrupt"

CacheKey = tuple[UUID, tuple[str, ...]]
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
        self._known: OrderedDict[CacheKey, Loaded] = OrderedDict()
        self._atlases: dict[One, Kept] = {}
        self._uses: Counter[One] = Counter()
        """In how many sets each of them is."""
        self._loading: dict[CacheKey, asyncio.Task[Loaded]] = {}

    @property
    def weight(self) -> int:
        """Bytes of memory that it takes, about."""
        return self._bytes

    def known(self, org_id: UUID, pins: Pins) -> CompiledAtlases | None:
        """What is here already."""
        key = _cache_key(org_id, pins)
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
        key = _cache_key(org_id, pins)
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

    def _loaded(self, key: CacheKey, done: asyncio.Task[Loaded]) -> None:
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

    def _forget(self, key: CacheKey, old: Loaded) -> None:
        self._bytes -= old.weight
        for one, kept in _ones(key, old):
            self._uses[one] -= 1
            if not self._uses[one]:
                del self._uses[one], self._atlases[one]
                self._bytes -= kept.weight


def _ones(key: CacheKey, loaded: Loaded) -> Iterator[tuple[One, Kept]]:
    org_id, digests = key
    for digest, kept in zip(digests, loaded.parts, strict=True):
        yield (org_id, digest), kept


def _ordered(pins: Pins) -> list[Mapping[str, Any]]:
    return sorted(pins, key=lambda pin: str(pin["atlas_id"]))


def _cache_key(org_id: UUID, pins: Pins) -> CacheKey:
    return org_id, tuple(pin["digest"] for pin in _ordered(pins))


async def _stored(tx: Transaction, pin: Mapping[str, Any]) -> Stored:
    atlas_id, version = pin["atlas_id"], pin["version"]
    await gates_store.require_true_atlas(tx, atlas_id, version)
    return Stored(await manifest_of(tx, atlas_id, version), pin["digest"], f"{atlas_id} {version}")


def _not_published(forged: Forged) -> Conflict:
    return Conflict(
        f"The atlas {forged.id} was not published, or not retired, by the plane: its MAC is false.",
        code=ATLAS_CORRUPT,
        hint="Look at `cortex audit verify`. Restore the rows of this atlas in `atlas_version` from a backup, or publish a new"
        " version: new sessions are bound to that.",
    )


async def manifest_of(tx: Transaction, atlas_id: str, version: str) -> bytes:
    return require_found(
        await gates_store.get_atlas_manifest(tx, atlas_id, version), "atlas_version"
    ).encode()


def _merged(parts: Sequence[Kept | Stored]) -> Loaded:
    """All that would be made at its first use is made here, where it holds up nobody."""
    kept = tuple(each if isinstance(each, Kept) else _to_kept(each) for each in parts)
    compiled = CompiledAtlases([each.atlas for each in kept])
    compiled.prepare()
    return Loaded(compiled, kept, weight_of_index(compiled))


def _to_kept(stored: Stored) -> Kept:
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


ATLAS_BYTES = 10_000
"""Bytes of an atlas without anything in it, and of a set of them."""
GATE_BYTES = 480
QUESTION_BYTES = 300
GUIDANCE_BYTES = 160
ENTRY_BYTES = 240
"""A capability, a context, a policy or an action."""
INDEXED_GATE_BYTES = 520
INDEXED_ENTRY_BYTES = 420
CAPABILITY_BYTES = 460
"""Where a gate stands before a capability."""
POINTER_BYTES = 16
KEY_BYTES = 90
"""A name that is made of two."""


def weight_of(atlas: Atlas) -> int:
    total = ATLAS_BYTES
    for gate in atlas.gates:
        total += _gate(gate)
    for capability in atlas.capabilities:
        total += ENTRY_BYTES + _texts((capability.capability_id, capability.name, *capability.actions))
    for context in atlas.contexts:
        total += ENTRY_BYTES + _texts((context.context_id, context.name, context.content))
    for policy in atlas.policies:
        total += ENTRY_BYTES + _texts((policy.policy_id, policy.reason, *policy.actions))
    for action in atlas.actions:
        total += ENTRY_BYTES + _texts((action.action_id, action.name, action.description))
        total += _json(action.parameters_schema)
    return total


def _gate(gate: Gate) -> int:
    total = GATE_BYTES + _texts(
        (gate.gate_id, gate.name, *gate.trigger.patterns, *gate.trigger.capability_ids)
    )
    total += _json(gate.trigger.params)
    for effect in (
        gate.contexts, gate.unlock_capabilities, gate.lock_capabilities, gate.allow_actions, gate.deny_actions,
    ):  # fmt: skip
        total += _texts(effect)
    if gate.guidance is not None:
        total += GUIDANCE_BYTES + _texts((gate.guidance.content, *gate.guidance.labels))
    return total + sum(map(_question, gate.questions))


def _question(question: Question) -> int:
    rules = question.validation
    words = (*question.options, *rules.must_contain, *rules.must_not_contain)
    texts = (question.question_id, question.question, question.hint or "", rules.pattern or "", *words)
    return QUESTION_BYTES + _texts(texts) + _json(question.schema)


def _texts(texts: Iterable[str]) -> int:
    return sum(getsizeof(each) + POINTER_BYTES for each in texts)


def _json(value: Any) -> int:
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        inside = value
    return 0 if value is None else getsizeof(value) + POINTER_BYTES + sum(map(_json, inside))


def weight_of_index(compiled: CompiledAtlases) -> int:
    """What is made of atlases beside themselves."""
    total = ATLAS_BYTES + INDEXED_GATE_BYTES * len(compiled.gates)
    total += _texts(compiled.gates)
    for entries in (compiled.contexts, compiled.capabilities):
        total += INDEXED_ENTRY_BYTES * len(entries) + _texts(entries)
    for atlas in compiled.atlases:
        total += INDEXED_ENTRY_BYTES * (len(atlas.policies) + len(atlas.actions))
    total += CAPABILITY_BYTES * sum(len(gate.trigger.capability_ids) for gate in compiled.gates.values())
    total += KEY_BYTES * sum(index.size for index in compiled.globs)
    total += sum(index.room for index in compiled.globs)
    return total + compiled.keywords.room


MINUTES_KEPT = timedelta(hours=1)
FORGOTTEN_AT_ONCE = 10_000


def minutes_of(governing: CompiledAtlases, calls: int = 1) -> dict[str, Any]:
    """For the write that sends so many calls: `more.gates.minutes`. Empty where no steward limits them.

    Over a limit the whole write is refused with `atlas_rate_limited`, whose hint says when to try again.
    """
    return {
        atlas.atlas_id: {"limit": atlas.steward.requests_per_minute, "calls": calls}
        for atlas in governing.atlases
        if atlas.steward.requests_per_minute is not None
    }


async def forget_minutes(db: Database) -> None:
    """Minutes that no limit counts any more."""
    while await gates_store.forget_atlas_minutes(db, MINUTES_KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass
