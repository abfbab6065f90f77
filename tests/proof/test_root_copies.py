"""Copies of roots outside of the database: a file that any process appends to, an address, and what they show."""

from __future__ import annotations

import asyncio
import stat
from collections.abc import Sequence
from pathlib import Path
from uuid import UUID

import asyncpg
import orjson
import pytest
from structlog.testing import capture_logs

from cortex_plane.channels.pinned_http import PinnedClient
from cortex_plane.channels.root_copies import RootsAddress, RootsFile
from cortex_plane.db.database import Database
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof.model import RootFault
from cortex_plane.proof.rules.exports import verify_export
from cortex_plane.proof.rules.roots import Held, read_copies, read_times
from cortex_plane.proof.verbs import audit
from cortex_plane.proof.verbs.audit import RootPlace, copied_to, verify_all, verify_org
from tests.fixtures.exports import exported, verdict
from tests.fixtures.people import World
from tests.fixtures.receivers import Reply, receiving

REPLACED = "the copy that is held outside has another hash: roots were started anew, or replaced"
MISSING = "a copy of it is held outside, and it is missing: roots were taken away, or started anew"


async def grow(world: World, count: int = 1) -> None:
    """So many more roots."""
    for _ in range(count):
        await world.say()
        assert await audit.make_root(world.db, world.org_id) == 1


def held(path: Path) -> Held:
    return read_copies(path.read_bytes().splitlines(keepends=True))


async def restart(admin: asyncpg.Connection) -> None:
    """Somebody takes all roots away: the plane begins again at 1."""
    await admin.execute("delete from audit_root_head; delete from audit_root")
    audit._compared_orgs.clear()


@pytest.mark.proves("D.604")
async def test_each_root_is_a_line_of_the_file(world: World, other: World, tmp_path: Path) -> None:
    path = tmp_path / "home" / "audit.jsonl"
    with copied_to([RootsFile(path)]):
        await grow(world, 2)
        await grow(other)
        await grow(world)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    lines = [orjson.loads(line) for line in path.read_bytes().splitlines()]
    assert [(line["org"], line["seq"]) for line in lines] == [
        (str(world.org_id), 1), (str(world.org_id), 2), (str(other.org_id), 1), (str(world.org_id), 3),
    ]  # fmt: skip
    kept = await audit.list_roots(world.db, world.admin.actor, None, 10)
    assert [(line["hash"], line["signature"], line["fingerprint"], line["body"]) for line in lines[:2]] == [
        (root.hash, root.signature, root.fingerprint, root.body) for root in kept[:0:-1]
    ]
    assert {org: sorted(found) for org, found in held(path).items()} == {
        world.org_id: [1, 2, 3], other.org_id: [1],
    }  # fmt: skip


@pytest.mark.proves("D.604")
async def test_what_was_not_written_is_written_at_the_next_look(world: World, other: World, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    await grow(world, 3)
    await grow(other)
    first, second = RootsFile(path), RootsFile(path)
    with copied_to([first]):
        await audit.copy_all_roots(world.db)
        before = path.read_bytes()
        await audit.copy_all_roots(world.db)
    assert before.count(b"\n") == 4
    assert path.read_bytes() == before, "nothing is written twice"
    # Whoever died in the middle of a line left no line; another process goes on after it.
    path.write_bytes(before + b'{"org":"')
    with copied_to([second, first]):
        await grow(world)
    assert path.read_bytes().startswith(before)
    assert sorted(held(path)[world.org_id]) == [1, 2, 3, 4]
    # A file that was taken away is written anew.
    path.unlink()
    with copied_to([first, second]):
        await asyncio.gather(*(audit.copy_all_roots(world.db) for _ in range(4)))
    assert path.read_bytes().count(b"\n") == 5


@pytest.mark.proves("D.604")
async def test_a_place_that_fails_keeps_nobody_from_making_roots(world: World, tmp_path: Path) -> None:
    (tmp_path / "audit.jsonl").mkdir()
    with capture_logs() as logs, copied_to([RootsFile(tmp_path / "audit.jsonl")]):
        await grow(world, 2)
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["root not copied"] * 2


@pytest.mark.proves("D.604")
async def test_roots_are_posted_and_sent_again_with_the_next_one(world: World) -> None:
    await grow(world, 2)
    async with receiving() as receiver:
        place = RootsAddress(receiver.url, PinnedClient(Allowed.parse("127.0.0.1"), timeout=5))
        places: Sequence[RootPlace] = [place]
        receiver.replies = [Reply(status=500)]
        with capture_logs() as logs, copied_to(places):
            for _ in range(2):
                await grow(world)
                assert place._task is not None
                await place._task
            await audit.copy_all_roots(world.db)
        await place.close()
    assert [line["error"] for line in logs if line["event"] == "root not copied"] == ["it answered 500"]
    # Of those that were there before it began only the newest is news.
    assert [got.json["seq"] for got in receiver.got] == [3, 3, 4]
    assert held_lines([got.body for got in receiver.got]) == {3, 4}


def held_lines(lines: Sequence[bytes]) -> set[int]:
    (found,) = read_copies(lines).values()
    return set(found)


@pytest.mark.proves("D.605")
async def test_a_restart_shows_against_a_copy_and_nowhere_else(
    world: World, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    place = RootsFile(path)
    with copied_to([place]):
        await grow(world, 3)
    copies = held(path)
    assert (await verify_org(world.db, world.org_id, copies[world.org_id])).whole
    before = path.read_bytes()
    await restart(admin)
    with capture_logs() as logs, copied_to([place]):
        await grow(world)
    assert path.read_bytes() == before, "the evidence stays as it is"
    assert "roots do not go on from their copy" in {line["event"] for line in logs}
    assert (await verify_org(world.db, world.org_id)).whole, "by itself it fits"
    faults = [RootFault(root=1, reason=REPLACED), RootFault(root=2, reason=MISSING)]
    found = await verify_all(world.db, copies)
    assert found["acme"].root_faults == faults
    export = await exported(world.db, world.admin.actor)
    assert verify_export(export.splitlines(keepends=True), copies).root_faults == faults
    assert verify_export(export.splitlines(keepends=True)).whole
    assert verdict(export).code == 0
    alone = verdict(export, "--roots", str(path))
    assert (alone.code, alone.said.splitlines()[:2]) == (
        1,
        ["root 1: the copy that you hold has another hash", "root 2: you hold a copy of it, and it is missing"],
    )


@pytest.mark.proves("D.605")
async def test_roots_that_are_gone_show_against_a_copy(
    db: Database, world: World, other: World, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    path = tmp_path / "audit.jsonl"
    with copied_to([RootsFile(path)]):
        await grow(world, 2)
        await grow(other)
    copies = held(path)
    await admin.execute("delete from audit_root_head where root_seq = 2; delete from audit_root where seq = 2")
    found = await verify_all(db, copies)
    assert found["acme"].root_faults == [RootFault(root=2, reason=MISSING)]
    assert found["rival"].whole
    nobody = UUID(int=7)
    strangers: Held = {nobody: {7: bytes(32)}}
    gone = await verify_all(db, strangers)
    assert gone[str(nobody)].root_faults == [
        RootFault(root=7, reason="a copy of it is held outside, and its org is gone")
    ]
    with pytest.raises(InvalidInput, match="say nothing about this export"):
        verify_export((await exported(db, world.admin.actor)).splitlines(keepends=True), strangers)


@pytest.mark.proves("D.605")
async def test_copies_that_are_newer_than_an_export_are_no_fault_of_it(world: World, tmp_path: Path) -> None:
    path, export = tmp_path / "audit.jsonl", tmp_path / "audit.ndjson"
    with copied_to([RootsFile(path)]):
        await grow(world, 2)
        export.write_bytes(await exported(world.db, world.admin.actor))
        await grow(world, 2)
    said = "2 copies of roots are newer than the export and were not compared"
    alone = verdict(export.read_bytes(), "--roots", str(path))
    assert (alone.code, said in alone.said.splitlines()) == (0, True)
    ours = verify_export(
        export.read_bytes().splitlines(keepends=True), held(path), read_times(path.read_bytes().splitlines())
    )
    assert (ours.whole, ours.newer_copies) == (True, 2)


@pytest.mark.proves("D.605")
async def test_what_is_no_copy_is_refused_by_its_line(world: World, tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    with copied_to([RootsFile(path)]):
        await grow(world)
    (line,) = path.read_bytes().splitlines(keepends=True)
    copied = orjson.loads(line)
    other_hash = {**copied, "hash": "00" * 32}
    for bad in (b"nonsense\n", b"[]\n", b"{}\n", orjson.dumps(other_hash), orjson.dumps(copied | {"seq": 2})):
        with pytest.raises(InvalidInput, match="Line 2 of the roots cannot be used"):
            read_copies([line, bad])
    assert read_copies([line, line]) == held(path)
