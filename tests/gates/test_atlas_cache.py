"""Compiled atlases: loaded once, verified, and kept within bounds."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.gates.files import atlases as manifests
from cortex_plane.gates.verbs import atlas_cache, atlases
from cortex_plane.gates.verbs.atlas_cache import AtlasCache
from cortex_plane.kernel.errors import Conflict, NotFound
from tests.fixtures.atlases import ATLAS, manifest, publish
from tests.fixtures.people import World

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
    where, name = {"load": (manifests, "compiled"), "publish": (atlases, "read"), "diff": (manifests, "compiled")}[door]
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
async def test_what_is_not_what_was_published_is_never_used(world: World, admin: asyncpg.Connection, size: int) -> None:
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
async def test_what_was_asked_for_last_is_kept_within_bounds(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
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
async def test_an_atlas_in_several_sets_is_there_once(world: World) -> None:
    one = await pinned(world, "1")
    two = await pinned(world, "1", atlas_id=OTHER)
    book = AtlasCache()
    alone = await book.at(world.db, world.org_id, [one])
    both = await book.at(world.db, world.org_id, [one, two])
    assert any(each is alone.atlases[0] for each in both.atlases)
    assert {"keywords", "known_actions"} <= set(vars(both)), "made with the rest, not by the first who asks"


@pytest.mark.proves("D.332")
async def test_bytes_of_manifests_are_bounded(world: World) -> None:
    pins = [await pinned(world, f"{number}", context_blocks=LARGE) for number in range(4)]
    book = AtlasCache(max_bytes=5 * 65_536 // 2)  # room for two of them
    for pin in pins:
        await book.at(world.db, world.org_id, [pin])
    assert [book.known(world.org_id, [pin]) is not None for pin in pins] == [False, False, True, True]
