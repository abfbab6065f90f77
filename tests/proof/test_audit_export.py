"""An export holds every chain of one org as it was at one moment, in flat memory, and verifies without the plane."""

from __future__ import annotations

import asyncio
import tracemalloc
from contextlib import aclosing
from datetime import datetime
from uuid import UUID

import asyncpg
import pytest
from benchmarks.trails import fill

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import Conflict, Forbidden, NotFound, TooMany, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.model import GENESIS, chain_hash
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.crash.points import extents
from tests.fixtures.exports import erase, exported, lines, verdict
from tests.fixtures.people import World


async def _idle(admin: asyncpg.Connection) -> int:
    """How many connections of this database hold a transaction open."""
    count: int = await admin.fetchval(
        """
        select count(*) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
          and backend_type = 'client backend'
        """
    )
    return count


@pytest.mark.proves("D.80", "D.82")
async def test_an_export_holds_every_chain_and_verifies_without_the_plane(
    db: Database, world: World, other: World
) -> None:
    first, second = await world.say("one"), await world.say("two", external_user_id="u-2")
    await other.say("elsewhere")
    export = await exported(db, world.admin.actor)
    header, *rest, trailer = lines(export)
    assert header["org"] == {"id": str(world.org_id), "slug": "acme"}
    assert (header["format"], header["version"], header["session"]) == ("cortex-audit-export", 2, None)
    assert datetime.fromisoformat(header["exported_at"])
    assert {line["type"] for line in rest} <= {"entry", "rooted", "head", "key", "root"}, "what happened, and no state"
    counted = await audit.verify(db, world.admin.actor)
    assert (trailer["chains"], trailer["entries"]) == (counted.chains, counted.entries)
    chains = [str(id) for id in sorted((world.org_id, first.session_id, second.session_id))]
    assert [line["chain"] for line in rest if line["type"] == "head"] == chains
    places = [(line["chain"], line.get("type") == "head", line["seq"]) for line in rest]
    assert places == sorted(places), "chain after chain, entry after entry, and then the head"
    assert str(other.org_id) not in export.decode()
    assert verdict(export).said == f"3 chains, {counted.entries} entries: whole\n"
    assert verdict(await exported(db, other.admin.actor)).code == 0


async def test_each_line_says_what_the_database_says(db: Database, world: World, admin: asyncpg.Connection) -> None:
    await world.say("ünïcödé \u202e <b>")
    found = [line for line in lines(await exported(db, world.admin.actor)) if line["type"] == "entry"]
    rows = await admin.fetch("select * from audit_entry order by chain_id, seq")
    assert len(found) == len(rows) > 5
    previous = dict.fromkeys({row["chain_id"] for row in rows}, GENESIS)
    for line, row in zip(found, rows, strict=True):
        assert line["body"].encode() == row["body"]
        assert (line["action"], line["seq"], UUID(line["chain"])) == (row["action"], row["seq"], row["chain_id"])
        assert (line["body_hash"], line["hash"]) == (row["body_hash"].hex(), row["hash"].hex())
        assert datetime.fromisoformat(line["created_at"]) == row["created_at"]
        assert (line["format"], line["job"]) == (2, str(row["job_id"]) if row["job_id"] else None)
        before = previous[row["chain_id"]]
        expected = chain_hash(before, row["seq"], row["created_at"], row["action"], row["job_id"], row["body_hash"])
        assert line["hash"] == expected.hex()
        previous[row["chain_id"]] = expected


@pytest.mark.proves("D.80")
async def test_a_session_can_be_exported_alone(db: Database, world: World) -> None:
    session = (await world.say("one")).session_id
    await world.say("two", external_user_id="u-2")
    header, *rest, trailer = lines(await exported(db, world.admin.actor, session))
    assert header["session"] == str(session)
    assert {line["chain"] for line in rest} == {str(session)}
    assert (trailer["chains"], trailer["entries"]) == (1, 4)
    assert verdict(await exported(db, world.admin.actor, session)).code == 0


async def test_what_is_not_to_be_had_is_refused_before_the_first_byte(db: Database, world: World, other: World) -> None:
    theirs = (await other.say()).session_id
    for unknown in (new_id(), theirs):
        with pytest.raises(NotFound) as raised:
            await audit.export_trail(db, world.admin.actor, unknown)
        assert raised.value.code == "session_not_found"
    guest = await world.person(Role.MEMBER)
    with pytest.raises(Forbidden):
        await audit.export_trail(db, guest.actor, None)
    assert verdict(await exported(db, world.admin.actor)).code == 0, "a refusal leaves nothing occupied"


@pytest.mark.proves("D.80")
async def test_an_export_is_of_one_moment(db: Database, world: World) -> None:
    """What happens while it is read is in the next one."""
    before = await audit.verify(db, world.admin.actor)
    chunks = await audit.export_trail(db, world.admin.actor, None)
    await world.say("meanwhile")
    export = b"".join([chunk async for chunk in chunks])
    assert lines(export)[-1]["entries"] == before.entries
    assert verdict(export).code == 0


@pytest.mark.proves("D.81")
async def test_one_export_of_an_org_at_a_time_and_few_in_all(
    db: Database, world: World, other: World, admin: asyncpg.Connection
) -> None:
    third = await World.create(db, "third")
    mine = await audit.export_trail(db, world.admin.actor, None)
    with pytest.raises(Conflict) as twice:
        await audit.export_trail(db, world.admin.actor, None)
    assert (twice.value.code, bool(twice.value.hint)) == ("export_under_way", True)
    theirs = await audit.export_trail(db, other.admin.actor, None)
    with db.heavy_read(new_id()), db.heavy_read(new_id()), pytest.raises(TooMany) as busy:
        await audit.export_trail(db, third.admin.actor, None)
    assert busy.value.code == "too_many_reads"
    assert (await audit.verify(db, world.admin.actor)).faults == [], "verifying does not wait for exports"
    await mine.aclose()
    assert verdict(await exported(db, third.admin.actor)).code == 0
    await theirs.aclose()
    assert await _idle(admin) == 0


@pytest.mark.proves("D.81")
async def test_whoever_stops_reading_frees_the_connection(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    await fill(admin, world.org_id, 2000)
    async with aclosing(await audit.export_trail(db, world.admin.actor, None)) as chunks:
        assert (await anext(chunks)).startswith(b'{"type":"header"')
        assert await _idle(admin) == 1
    assert await _idle(admin) == 0
    while True:  # a whole export may fit between two looks: then another one is read
        reading = asyncio.create_task(exported(db, world.admin.actor))
        while not reading.done() and await _idle(admin) == 0:
            pass
        if not reading.done():
            break
    reading.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reading
    assert await _idle(admin) == 0
    assert verdict(await exported(db, world.admin.actor)).code == 0


@pytest.mark.proves("D.81")
async def test_a_database_that_fails_midway_leaves_no_trailer(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    await fill(admin, world.org_id, 3000)
    chunks = await audit.export_trail(db, world.admin.actor, None)
    got = await anext(chunks)
    await admin.execute(
        """
        select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and pid <> pg_backend_pid() and xact_start is not null
          and backend_type = 'client backend'
        """
    )

    async def rest() -> bytes:
        return b"".join([chunk async for chunk in chunks])

    with pytest.raises(Unavailable):
        await rest()
    assert b'"trailer"' not in got
    assert verdict(got).code == 2
    assert verdict(await exported(db, world.admin.actor)).code == 0, "and the next one works again"


@pytest.mark.proves("D.80")
@extents
async def test_an_export_of_any_size_takes_little_memory(
    db: Database, world: World, admin: asyncpg.Connection, whole: bool
) -> None:
    entries = 20_000 if whole else 8_000
    await fill(admin, world.org_id, entries, padding=800)
    await exported(db, world.admin.actor, (await world.say()).session_id)  # whatever is made once is made now
    size = 0
    tracemalloc.start()
    try:
        async with aclosing(await audit.export_trail(db, world.admin.actor, None)) as chunks:
            async for chunk in chunks:
                size += len(chunk)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size > entries * 1024
    assert peak < 4 * 2**20, f"{peak} bytes for an export of {size}"


ENTRY, HEAD = "where chain_id = $1 and seq = {}", "where session_id = $1"
TAMPERING = {
    f"update audit_entry set body = '\\xff00'::bytea {ENTRY.format(2)}": "entry 2: its body was changed",
    f"update audit_entry set action = 'no' {ENTRY.format(1)}": "entry 1: its action differs from its body",
    f"update audit_entry set created_at = created_at + interval '1 microsecond' {ENTRY.format(3)}": (
        "entry 3: its hash does not follow from the one before"
    ),
    f"delete from audit_entry {ENTRY.format(2)}": "entry 2: it is missing; the next one is 3",
    f"delete from audit_entry {ENTRY.format(4)}": "entry 4: the head says that there are 4",
    "delete from audit_entry where chain_id = $1": "entry 1: the head says that there are 4",
    f"update session_head set audit_hash = sha256('x') {HEAD}": "entry 4: the head holds another hash",
    f"delete from session_head {HEAD}": "its head is gone",
}


@pytest.mark.proves("D.82")
@pytest.mark.parametrize(("statement", "reason"), TAMPERING.items())
async def test_what_was_changed_in_the_database_is_found_in_the_export(
    db: Database, world: World, admin: asyncpg.Connection, statement: str, reason: str
) -> None:
    session = (await world.say()).session_id
    await world.say("another chain", external_user_id="u-2")
    assert verdict(await exported(db, world.admin.actor)).code == 0
    await admin.execute(statement, session)
    found = verdict(await exported(db, world.admin.actor))
    assert found.said.splitlines()[:-1] == [f"chain {session}: {reason}"]
    assert (found.code, "NOT whole" in found.said) == (1, True)


@pytest.mark.proves("D.82")
async def test_an_erased_body_still_verifies(db: Database, world: World, admin: asyncpg.Connection) -> None:
    session = (await world.say()).session_id
    await erase(world, session, {3: "message_received"})
    await admin.execute("update audit_entry set body = null where chain_id = $1 and seq = 3", session)
    export = await exported(db, world.admin.actor)
    assert [line["body"] for line in lines(export) if line.get("seq") == 3 and line["chain"] == str(session)] == [None]
    assert verdict(export).code == 0


@pytest.mark.proves("D.603")
async def test_entries_of_a_session_that_is_gone_are_exported_without_a_head(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    """First, last and in between: whoever removes a session's rows does not remove its chain from sight."""
    strange = [UUID(int=1), UUID(int=world.org_id.int + 1), UUID(int=2**128 - 1)]
    for id in strange:
        await admin.execute(
            """
            insert into audit_entry (org_id, session_id, seq, format, action, body, body_hash, hash, created_at)
            select org_id, $1, seq, format, action, body, body_hash, hash, created_at from audit_entry where seq = 1
              and org_id = $2 and session_id is null
            """,
            id,
            world.org_id,
        )
    found = await audit.verify(db, world.admin.actor)
    assert [(fault.chain_id, fault.reason) for fault in found.faults] == [(id, "its session is gone") for id in strange]
    said = verdict(await exported(db, world.admin.actor)).said.splitlines()
    assert said[:-1] == [f"chain {id}: its head is gone" for id in strange]
