"""Compiled atlases: loaded once, verified, and kept within bounds."""

from __future__ import annotations

import asyncio
import gc
import threading
import tracemalloc
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.gates.files import atlases as manifests
from cortex_plane.gates.files.atlases import read
from cortex_plane.gates.rules.index import MAX_MEMORY
from cortex_plane.gates.verbs import atlas_cache, atlases
from cortex_plane.gates.verbs.atlas_cache import AtlasCache
from cortex_plane.kernel.errors import Conflict, NotFound
from tests.atlases import ATLAS, manifest, plain, publish
from tests.crash.points import extents
from tests.people import World

OTHER = "com.acme.billing"


async def pinned(world: World, version: str = "1.0.0", atlas_id: str = ATLAS, **more: Any) -> dict[str, str]:
    made = (await publish(world, manifest(version, atlas_id, **more))).version
    return {"atlas_id": made.atlas_id, "version": made.version, "digest": made.digest}


def counted(monkeypatch: pytest.MonkeyPatch) -> list[UUID]:
    """The orgs whose atlases were loaded from now on."""
    loads: list[UUID] = []
    load = AtlasCache._load

    async def counting(book: AtlasCache, db: Database, org_id: UUID, pins: atlas_cache.Pins) -> Any:
        loads.append(org_id)
        return await load(book, db, org_id, pins)

    monkeypatch.setattr(AtlasCache, "_load", counting)
    return loads


@pytest.mark.proves("D.332", "S5.30")
async def test_many_who_ask_at_once_load_them_once(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    loads, book = counted(monkeypatch), AtlasCache()
    first, second = await pinned(world), await pinned(world, atlas_id=OTHER)
    assert book.known(world.org_id, [first, second]) is None
    waiting = [asyncio.create_task(book.at(world.db, world.org_id, [first, second])) for _ in range(20)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    found = await asyncio.gather(*waiting[1:])
    assert len({id(each) for each in found}) == 1
    assert [atlas.atlas_id for atlas in found[0].atlases] == [OTHER, ATLAS]
    # In whatever order they are named.
    assert await book.at(world.db, world.org_id, [second, first]) is found[0]
    assert loads == [world.org_id]


class Slow:
    """Takes until it is let go, wherever it runs."""

    def __init__(self, work: Callable[..., Any]) -> None:
        self.work = work
        self.begun, self.go = threading.Event(), threading.Event()

    def __call__(self, *given: Any, **named: Any) -> Any:
        self.begun.set()
        assert self.go.wait(30), "nothing else goes on meanwhile"
        return self.work(*given, **named)

    async def let_go_by(self, others: Awaitable[object]) -> None:
        """Once somebody else was answered meanwhile."""
        assert await asyncio.to_thread(self.begun.wait, 30)
        await others
        self.go.set()


LARGE = [{"context_id": "c", "name": "C", "content": "y" * 65_536, "inject_mode": "on_demand"}]


@pytest.mark.proves("D.332")
@pytest.mark.parametrize("door", ["load", "publish", "diff"])
async def test_the_api_answers_while_a_large_atlas_is_read(
    http: httpx.AsyncClient, world: World, monkeypatch: pytest.MonkeyPatch, door: str
) -> None:
    pins = [await pinned(world, version, context_blocks=LARGE) for version in ("1.0.0", "1.0.1")]
    where, name = {
        "load": (manifests, "compiled"),
        "publish": (atlases, "read"),
        "diff": (manifests, "compiled"),
    }[door]
    slow = Slow(getattr(where, name))
    monkeypatch.setattr(where, name, slow)
    others = asyncio.create_task(slow.let_go_by(http.get("/v1/me", headers=world.admin.headers)))
    if door == "load":
        found: object = (await AtlasCache().at(world.db, world.org_id, pins[:1])).gates
    elif door == "publish":
        found = (await publish(world, manifest("2.0.0", context_blocks=LARGE))).created
    else:
        path = f"/v1/atlases/{ATLAS}/diff"
        answer = await http.get(path, params={"from": "1.0.0", "to": "1.0.1"}, headers=world.admin.headers)
        found = answer.status_code == 200
    await others
    assert found


@pytest.mark.proves("D.332")
async def test_each_version_and_each_org_has_its_own(
    world: World, other: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads, book = counted(monkeypatch), AtlasCache()
    first, second = await pinned(world), await pinned(world, "2.0.0")
    theirs = await pinned(other)
    assert theirs == first
    made = [
        await book.at(world.db, world.org_id, [first]),
        await book.at(world.db, world.org_id, [second]),
        await book.at(world.db, other.org_id, [theirs]),
    ]
    assert [each.atlases[0].version for each in made] == ["1.0.0", "2.0.0", "1.0.0"]
    assert loads == [world.org_id, world.org_id, other.org_id]
    with pytest.raises(NotFound):
        await book.at(world.db, other.org_id, [second])


@pytest.mark.proves("D.332")
@pytest.mark.parametrize("size", [10, 50_000])
async def test_what_is_not_what_was_published_is_never_used(
    world: World, admin: asyncpg.Connection, size: int
) -> None:
    book = AtlasCache()
    pin = await pinned(world, description="x" * min(size, 1000), context_blocks=[
        {"context_id": "c", "name": "C", "content": "y" * size}
    ])  # fmt: skip
    await admin.execute("update atlas_version set manifest = replace(manifest, 'blocking', 'advisory')")
    for _ in range(2):
        with pytest.raises(Conflict) as refused:
            await book.at(world.db, world.org_id, [pin])
        assert refused.value.code == "atlas_corrupt"
    await admin.execute("update atlas_version set manifest = replace(manifest, 'advisory', 'blocking')")
    assert (await book.at(world.db, world.org_id, [pin])).atlases[0].digest == pin["digest"]


@pytest.mark.proves("D.332")
async def test_what_was_asked_for_last_is_kept_within_bounds(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = counted(monkeypatch)
    pins = [await pinned(world, f"{number}") for number in range(4)]
    by_number = AtlasCache(max_entries=2)
    for pin in (*pins[:3], pins[1], pins[2]):
        await by_number.at(world.db, world.org_id, [pin])
    assert len(loads) == 3
    assert by_number.known(world.org_id, [pins[0]]) is None
    by_size = AtlasCache(max_bytes=1)
    for pin in pins:
        await by_size.at(world.db, world.org_id, [pin])
    kept = [by_size.known(world.org_id, [pin]) is not None for pin in pins]
    assert kept == [False, False, False, True], "the last one is always kept"


@pytest.mark.proves("D.332")
async def test_an_atlas_in_several_sets_is_there_once_and_is_counted_once(world: World) -> None:
    one = await pinned(world, "1")
    two = await pinned(world, "1", atlas_id=OTHER)
    book = AtlasCache(max_entries=3)
    alone = await book.at(world.db, world.org_id, [one])
    size = book.weight
    both = await book.at(world.db, world.org_id, [one, two])
    assert any(each is alone.atlases[0] for each in both.atlases)
    assert size > 5 * len(manifest("1")), "an atlas takes more room than its manifest"
    assert book.weight < 4 * size
    others = [await pinned(world, f"x{number}") for number in range(3)]
    for pin in others:
        await book.at(world.db, world.org_id, [pin])
    assert book.known(world.org_id, [one]) is None
    fresh = AtlasCache()
    for pin in others:
        await fresh.at(world.db, world.org_id, [pin])
    assert book.weight == fresh.weight, "nothing is left of those that went"
    assert {"keywords", "known_actions"} <= set(vars(both)), "made with the rest, not by the first who asks"


def many(kind: str, number: int) -> dict[str, Any]:
    """The smallest entries that there are, of one kind: they take most for each byte of their file."""
    each = range(number)

    def gates(trigger: Callable[[int], dict[str, Any]], **more: Any) -> dict[str, Any]:
        rest = {"mode": "observational", **more}
        return {"checkpoints": [{"checkpoint_id": f"{n}", "trigger": trigger(n), **rest} for n in each]}

    def words(word: Callable[[int], str], **more: Any) -> dict[str, Any]:
        trigger = {"type": "keyword", "patterns": [word(n) for n in each], **more}
        return {"checkpoints": [{"checkpoint_id": "k", "mode": "observational", "trigger": trigger}]}

    def policy(action: Callable[[int], str]) -> dict[str, Any]:
        return {"policies": [{"policy_id": "p", "type": "allow", "actions": [action(n) for n in each]}]}

    asked = [{"question_id": f"{n}", "question": "?", "response_type": "text"} for n in range(40)]
    mappings = {f"delete{n}_*": {"require_confirmation": True} for n in each}
    shapes: dict[str, Callable[[], dict[str, Any]]] = {
        "nothing": dict,
        "gates": lambda: gates(lambda n: {"type": "error_occurred"}),
        "intervals": lambda: gates(lambda n: {"type": "time_interval", "seconds": n + 1}),
        "gates with globs": lambda: gates(lambda n: {"type": "action_pre", "patterns": [f"a{n}.*"]}),
        "gates with words": lambda: gates(lambda n: {"type": "keyword", "patterns": [f"w{n}"]}),
        "params": lambda: gates(lambda n: {"type": "custom", "trigger_id": "t", "params": {"a": [{}, [], {}]}}),
        "questions": lambda: {"checkpoints": gates(
            lambda n: {"type": "action_pre", "patterns": [f"a{n}.b"]}, mode="blocking", questions=asked
        )["checkpoints"][:100]},
        "guidance": lambda: gates(
            lambda n: {"type": "error_occurred"}, mode="advisory", guidance={"content": "x", "labels": ["y"]}
        ),
        "words": lambda: words(lambda n: f"{n * 2654435761 % 2**28:x}"),
        "phrases": lambda: words(lambda n: f"{n:x} go", match_mode="phrase"),
        "long words": lambda: words(lambda n: f"{n} " + "longer " * 20),
        "wide words": lambda: words(lambda n: f"слово{n}\U0001f600"),
        "words that grow": lambda: words(lambda n: f"{n}\ufdfa\ufdfa\ufdfa"),
        "few words": lambda: words(lambda n: f"{n % 9}"),
        "names": lambda: policy(lambda n: f"a{n}.b"),
        "globs": lambda: policy(lambda n: f"a{n}abc.*"),
        "globs of many parts": lambda: policy(lambda n: f"*x{n}y*z{n}*a*b*c*d*e*f*.q"),
        "policies": lambda: {
            "policies": [{"policy_id": f"p{n}", "type": "allow", "actions": ["a.b"]} for n in each]
        },
        "capabilities": lambda: {"capabilities": [{"capability_id": f"c{n}", "actions": [f"a{n}"]} for n in each]},
        "guarded": lambda: {
            "capabilities": [{"capability_id": f"c{n}", "actions": [f"a{n}"]} for n in each],
            "checkpoints": [{
                "checkpoint_id": "g", "mode": "blocking", "questions": asked[:1],
                "trigger": {"type": "capability_access", "capability_ids": [f"c{n}" for n in each]},
            }],
        },
        "actions": lambda: {"actions": [{"action_id": f"a{n}", "parameters_schema": {}} for n in each]},
        "contexts": lambda: {"context_blocks": [{"context_id": f"{n}", "content": "x"} for n in each]},
        "long contexts": lambda: {"context_blocks": [{"context_id": "c", "content": "e" * 900_000 + "\U0001f600"}]},
        "short form": lambda: {"checkpoint_config": {"action_pre": {"mappings": mappings}}},
    }  # fmt: skip
    return shapes[kind]()


KINDS = [
    "nothing", "gates", "intervals", "gates with globs", "gates with words", "params", "questions", "guidance", "words",
    "phrases", "long words", "wide words", "words that grow", "few words", "names", "globs", "globs of many parts",
    "policies", "capabilities", "guarded", "actions", "contexts", "long contexts", "short form",
]  # fmt: skip


@pytest.mark.proves("D.332")
@pytest.mark.parametrize("kind", KINDS)
@extents
async def test_what_atlases_weigh_is_what_they_take(kind: str, whole: bool) -> None:
    made = read(plain(ATLAS, "1", **many(kind, 1500 if whole else 400)), name="a.json")
    stored = atlas_cache.Stored(made.manifest, made.atlas.digest, ATLAS)
    atlas_cache._merged([stored])  # what is made once is made
    gc.disable()  # so that what is new is young: to look through everything else takes longer than the rest of the test
    tracemalloc.start()
    try:
        loaded = atlas_cache._merged([stored])
        gc.collect(0)
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        gc.enable()
    book = AtlasCache()
    done = asyncio.create_task(_itself(loaded))
    await done
    book._loaded((UUID(int=1), (stored.digest,)), done)
    assert taken <= book.weight <= 4 * taken + 20_000


async def _itself(loaded: atlas_cache.Loaded) -> atlas_cache.Loaded:
    return loaded


@pytest.mark.proves("D.332", "D.352")
async def test_an_expression_weighs_what_it_may_take() -> None:
    """Its memory is none that Python knows of."""
    trigger = {"type": "keyword", "match_mode": "regex", "patterns": [f"a{n}x+" for n in range(100)]}
    hears = {"checkpoint_id": "k", "mode": "observational", "trigger": trigger}
    made = read(plain(ATLAS, "1", checkpoints=[hears]), name="a.json")
    loaded = atlas_cache._merged([atlas_cache.Stored(made.manifest, made.atlas.digest, ATLAS)])
    assert loaded.weight >= 100 * MAX_MEMORY
