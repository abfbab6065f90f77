"""Audit chains: SQL and Python chain alike, tampering is found and named, and a living chain raises no alarm."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from cortex_plane.db.database import NOBODY, Database
from cortex_plane.proof.model import GENESIS, NAMED, Blanked, Fault, chain_hash, chain_hash_1
from cortex_plane.proof.verbs.audit import verify_all, verify_org
from tests.fixtures.clock import Clock
from tests.fixtures.exports import erase
from tests.fixtures.people import World

HASHES = st.binary(min_size=32, max_size=32)
COLUMNS = "org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at"


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    previous=HASHES,
    seq=st.integers(1, 2**63 - 1),
    # The driver takes the very first and last moment that Python knows for infinity.
    at=st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30), timezones=st.just(UTC)),
    action=st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])),
    job=st.none() | st.uuids(),
    body_hash=HASHES,
)
@example(GENESIS, 1, datetime(1970, 1, 1, tzinfo=UTC), "act", None, GENESIS)
@example(GENESIS, 1, datetime(1969, 12, 31, 23, 59, 59, 999999, UTC), "act", UUID(int=0), GENESIS)
@example(GENESIS, 1, datetime(1, 1, 1, 0, 0, 0, 1, UTC), "", None, GENESIS)
@example(GENESIS, 2**63 - 1, datetime(9999, 12, 31, 23, 59, 59, 999998, UTC), "\\x é", None, GENESIS)
@pytest.mark.proves("D.600")
async def test_sql_and_python_chain_alike(
    db: Database, previous: bytes, seq: int, at: datetime, action: str, job: UUID | None, body_hash: bytes
) -> None:
    async with db.transaction(NOBODY) as tx:
        sql = "select chain_hash($1, $2, $3, $4, $5, $6)"
        in_sql = await tx.value(sql, previous, seq, at, action, job, body_hash)
    assert in_sql == chain_hash(previous, seq, at, action, job, body_hash)


# Tampering ---------------------------------------------------------------------------------------------------


@dataclass
class Trail:
    """An org with two sessions, whose rows somebody with the whole database in hand changes and puts back."""

    admin: asyncpg.Connection
    world: World
    other: World
    session: UUID
    second: UUID

    async def faults(self, world: World | None = None) -> list[tuple[UUID, int, str]]:
        found = (await verify_org(self.world.db, (world or self.world).org_id)).faults
        return [(fault.chain_id, fault.seq, fault.reason) for fault in found]

    async def tamper(self, statements: str, *args: Any) -> None:
        """Changes what ``restore`` brings back."""
        if args:
            await self.admin.execute(statements, *args)
        else:
            await self.admin.execute(
                statements.replace(":session", f"'{self.session}'")
                .replace(":second", f"'{self.second}'")
                .replace(":org", f"'{self.world.org_id}'")
                .replace(":other", f"'{self.other.org_id}'")
            )

    async def keep(self) -> None:
        for table in ("audit_entry", "session_head", "org_head"):
            await self.admin.execute(f"create temp table kept_{table} as select * from {table}")

    async def restore(self) -> None:
        async with self.admin.transaction():
            for table, columns in (("audit_entry", COLUMNS), ("session_head", "*"), ("org_head", "*")):
                target = f"{table} ({columns})" if columns != "*" else table
                await self.admin.execute(
                    f"delete from {table}; insert into {target} select {columns} from kept_{table}"
                )


@pytest_asyncio.fixture
async def trail(admin: asyncpg.Connection, world: World, other: World) -> AsyncIterator[Trail]:
    """The session's chain has five entries: account, session, message, job, message."""
    session = (await world.say("one")).session_id
    await world.say("two")
    second = (await world.say("three", external_user_id="u-2")).session_id
    made = Trail(admin, world, other, session, second)
    await made.keep()
    yield made
    await made.restore()
    assert await made.faults() == []


ENTRY = "update audit_entry set {} where session_id = :session and seq = {}"
HEAD = "update session_head set {} where session_id = :session"
CHANGED, HASH = "its body was changed", "its hash does not follow from the one before"
ZEROS = "decode(repeat('00', 32), 'hex')"

TAMPERING: dict[str, tuple[str, int, str]] = {
    "body": (ENTRY.format("body = body || ' '", 3), 3, CHANGED),
    "body of the first": (ENTRY.format("body = body || ' '", 1), 1, CHANGED),
    "body of the last": (ENTRY.format("body = body || ' '", 5), 5, CHANGED),
    "body_hash": (ENTRY.format(f"body_hash = {ZEROS}", 3), 3, CHANGED),
    "body_hash of an erased body": (ENTRY.format(f"body = null, body_hash = {ZEROS}", 3), 3, HASH),
    "body and body_hash": (
        ENTRY.format(
            """body = '{"action": "message_received"}',
            body_hash = sha256('{"action": "message_received"}')""",
            3,
        ),
        3,
        HASH,
    ),
    "action": (ENTRY.format("action = 'job_cancelled'", 3), 3, "its action differs from its body"),
    "action of an erased body": (ENTRY.format("action = 'job_cancelled', body = null", 3), 3, HASH),
    "job": (ENTRY.format("job_id = gen_random_uuid()", 3), 3, HASH),
    "job left out": (ENTRY.format("job_id = null", 4), 4, HASH),
    "format": (ENTRY.format("format = 1", 5), 5, "it has format 1, after one with format 2"),
    "format of the first": (ENTRY.format("format = 1", 1), 1, HASH),
    "body blanked": (ENTRY.format("body = null", 3), 3, "its body is gone, and no erase entry names it"),
    "hash": (ENTRY.format(f"hash = {ZEROS}", 3), 3, HASH),
    "hash of the last": (ENTRY.format(f"hash = {ZEROS}", 5), 5, HASH),
    "created_at": (ENTRY.format("created_at = created_at + interval '1 microsecond'", 3), 3, HASH),
    "seq": (ENTRY.format("seq = 30", 3), 3, "entry 3 is missing; the next one is 4"),
    "seq of the last": (ENTRY.format("seq = 6", 5), 5, "entry 5 is missing; the next one is 6"),
    "seq of the first": (ENTRY.format("seq = 0", 1), 1, "entry 1 is missing; the next one is 0"),
    "deleting the first": (
        "delete from audit_entry where session_id = :session and seq = 1",
        1,
        "entry 1 is missing; the next one is 2",
    ),
    "deleting one in the middle": (
        "delete from audit_entry where session_id = :session and seq = 3",
        3,
        "entry 3 is missing; the next one is 4",
    ),
    "deleting the last": (
        "delete from audit_entry where session_id = :session and seq = 5",
        5,
        "the chain ends at 4, its head says 5",
    ),
    "deleting all": ("delete from audit_entry where session_id = :session", 1, "the chain ends at 0, its head says 5"),
    "deleting and closing the gap": (
        """delete from audit_entry where session_id = :session and seq = 3;
        update audit_entry set seq = 3 where session_id = :session and seq = 4;
        update audit_entry set seq = 4 where session_id = :session and seq = 5""",
        3,
        HASH,
    ),
    "swapping two": (
        ENTRY.format("seq = 99", 2) + ";" + ENTRY.format("seq = 2", 3) + ";" + ENTRY.format("seq = 3", 99),
        2,
        HASH,
    ),
    "adding one": (
        f"""insert into audit_entry ({COLUMNS})
        select org_id, session_id, 6, format, action, job_id, body, body_hash,
          chain_hash(hash, 6, created_at, action, job_id, body_hash), created_at
        from audit_entry where session_id = :session and seq = 5""",
        7,
        "the chain ends at 6, its head says 5",
    ),
    "the hash of the head": (HEAD.format(f"audit_hash = {ZEROS}"), 5, "the head holds another hash"),
    "the length of the head": (HEAD.format("audit_seq = 6"), 6, "the chain ends at 5, its head says 6"),
    "cutting the chain and its head": (
        "delete from audit_entry where session_id = :session and seq = 5;" + HEAD.format("audit_seq = 4"),
        4,
        "the head holds another hash",
    ),
    "removing the head": ("delete from session_head where session_id = :session", 0, "its head is gone"),
}


@pytest.mark.proves("D.15")
async def test_tampering_with_a_sessions_chain_is_found_and_named(trail: Trail) -> None:
    for what, (statements, seq, reason) in TAMPERING.items():
        await trail.tamper(statements)
        assert await trail.faults() == [(trail.session, seq, reason)], what
        await trail.restore()


@pytest.mark.proves("D.15")
async def test_tampering_with_the_orgs_own_chain_is_found_and_named(trail: Trail) -> None:
    org = trail.world.org_id
    for statements, seq, reason in (
        ("update audit_entry set body = '{}' where chain_id = :org and seq = 2", 2, CHANGED),
        ("update org_head set audit_hash = " + ZEROS + " where org_id = :org", 5, "the head holds another hash"),
        ("delete from org_head where org_id = :org", 0, "its head is gone"),
        ("delete from audit_entry where chain_id = :org", 1, "the chain ends at 0, its head says 5"),
    ):
        await trail.tamper(statements)
        assert await trail.faults() == [(org, seq, reason)]
        assert await trail.faults(trail.other) == []
        await trail.restore()


async def test_moving_an_entry_is_found_in_both_chains(trail: Trail) -> None:
    await trail.tamper(ENTRY.format("session_id = :second, seq = 5", 3))
    assert set(await trail.faults()) == {
        (trail.session, 3, "entry 3 is missing; the next one is 4"),
        (trail.second, 5, HASH),
    }
    await trail.restore()
    await trail.tamper("update audit_entry set org_id = :other, seq = 6 where chain_id = :org and seq = 2")
    missing = (trail.world.org_id, 2, "entry 2 is missing; the next one is 3")
    assert await trail.faults() == [missing]
    assert await trail.faults(trail.other) == [(trail.other.org_id, 6, HASH)]
    everything = await verify_all(trail.world.db)
    assert {slug: len(result.faults) for slug, result in everything.items()} == {"acme": 1, "rival": 1}


async def test_a_forged_rest_of_a_chain_does_not_fit_its_head(trail: Trail) -> None:
    """Whoever changes an entry and computes all the later hashes anew is given away by the head."""
    rows = await trail.admin.fetch(
        "select seq, action, job_id, body, hash, created_at from audit_entry where session_id = $1 order by seq",
        trail.session,
    )
    previous = rows[1]["hash"]
    for row in rows[2:]:
        body = row["body"].replace(b"u-1", b"u-9")
        body_hash = hashlib.sha256(body).digest()
        previous = chain_hash(previous, row["seq"], row["created_at"], row["action"], row["job_id"], body_hash)
        await trail.tamper(
            "update audit_entry set body = $3, body_hash = $4, hash = $5 where session_id = $1 and seq = $2",
            trail.session, row["seq"], body, body_hash, previous,
        )  # fmt: skip
    assert await trail.faults() == [(trail.session, 5, "the head holds another hash")]


async def test_a_body_that_is_no_json_is_found_and_named(trail: Trail) -> None:
    for body in (b"not json", b"[]", b"", b"\xff"):
        await trail.tamper(
            "update audit_entry set body = $2, body_hash = $3 where session_id = $1 and seq = 3",
            trail.session, body, hashlib.sha256(body).digest(),
        )  # fmt: skip
        assert await trail.faults() == [(trail.session, 3, HASH)], body


@pytest.mark.proves("D.15", "D.601")
async def test_bodies_are_erased_under_an_entry_that_names_them(trail: Trail) -> None:
    await erase(trail.world, trail.session, {1: "account_created", 3: "message_received"})
    await trail.tamper("update audit_entry set body = null where session_id = :session and seq in (1, 3)")
    found = await verify_org(trail.world.db, trail.world.org_id)
    assert (found.chains, found.faults, found.blanked) == (3, [], 2)
    assert found.blanked_entries == [Blanked(chain_id=trail.session, seq=seq) for seq in (1, 3)]
    await trail.tamper("update audit_entry set body = null where org_id = :org")
    found = await verify_org(trail.world.db, trail.world.org_id)
    assert {(fault.chain_id, fault.seq) for fault in found.faults} == {
        (chain, 1) for chain in (trail.world.org_id, trail.session, trail.second)
    }
    total = await trail.admin.fetchval("select count(*) from audit_entry where org_id = $1", trail.world.org_id)
    assert (found.blanked, len(found.blanked_entries), found.entries) == (total, min(total, NAMED), total)


@pytest.mark.proves("D.600")
async def test_entries_of_an_earlier_release_verify_and_new_ones_follow_them(trail: Trail) -> None:
    """A chain of format 1, as a database that was upgraded holds it, goes on with format 2."""
    previous = GENESIS
    rows = await trail.admin.fetch("select * from audit_entry where session_id = $1 order by seq", trail.session)
    for row in rows:
        previous = chain_hash_1(previous, row["seq"], row["created_at"], row["body_hash"])
        await trail.tamper(
            "update audit_entry set format = 1, job_id = null, hash = $3 where session_id = $1 and seq = $2",
            trail.session, row["seq"], previous,
        )  # fmt: skip
    await trail.tamper("update session_head set audit_hash = $2 where session_id = $1", trail.session, previous)
    assert await trail.faults() == []
    await trail.world.say("three")
    assert await trail.faults() == []
    formats = "select array_agg(format order by seq) from audit_entry where session_id = $1"
    assert await trail.admin.fetchval(formats, trail.session) == [1, 1, 1, 1, 1, 2]


@pytest.mark.proves("D.600")
async def test_each_entry_of_a_message_names_its_job(trail: Trail) -> None:
    rows = await trail.admin.fetch(
        "select action, job_id from audit_entry where session_id = $1 order by seq", trail.session
    )
    job = await trail.admin.fetchval("select id from job where session_id = $1", trail.session)
    assert [(row["action"], row["job_id"]) for row in rows] == [
        ("account_created", None), ("session_created", None), ("message_received", job), ("job_created", job),
        ("message_received", job),
    ]  # fmt: skip


# Life --------------------------------------------------------------------------------------------------------


async def test_entries_of_one_moment_and_of_moved_clocks_verify(db: Database, clock: Clock) -> None:
    """A clock that stands still, or goes back, makes strange times and no fault."""
    world = await World.create(db, "acme")
    await world.say()
    for at in (datetime(1969, 7, 20, 20, 17, 40, 123457, UTC), datetime(2400, 2, 29, 1, 2, 3, 999999, UTC)):
        await clock.set(at)
        await world.say()
    assert (await verify_org(db, world.org_id)).faults == []


async def test_verifying_while_messages_come_in_raises_no_alarm(db: Database, world: World) -> None:
    done = asyncio.Event()

    async def talk(person: str) -> None:
        for n in range(12):
            await world.say(f"{n}", external_user_id=person)

    async def watch() -> list[tuple[int, list[Fault]]]:
        seen: list[tuple[int, list[Fault]]] = []
        # The first look begins with the messages, the last one may be after them.
        while not done.is_set() or len(seen) < 2:
            found = await verify_org(db, world.org_id)
            assert found.row_faults == []
            seen.append((found.entries, found.faults))
        return seen

    watching = asyncio.create_task(watch())
    await asyncio.gather(*(talk(person) for person in ("u-1", "u-2", "u-3")))
    done.set()
    seen = await watching
    assert all(faults == [] for _, faults in seen)
    assert len({entries for entries, _ in seen}) > 1, "it must have looked while the chains grew"
    # Each person: an account, a session, a job and twelve messages; the org: itself, an agent, a connection, a key, policies.
    final = await verify_org(db, world.org_id)
    assert (final.chains, final.entries, final.faults) == (4, 3 * 15 + 5, [])
