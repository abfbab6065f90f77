"""Signed roots: one for each number, over whatever grew, without missing a chain and without stopping one."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import asyncpg
import orjson
import pytest

from cortex_plane.db.database import Database, Transaction
from cortex_plane.db.vault import Vault
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import GENESIS, Fault, RootFault, chain_hash, fingerprint
from cortex_plane.proof.verbs import audit, receipts
from cortex_plane.proof.verbs.audit import verify_org
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.clock import Clock
from tests.fixtures.exports import erase, exported, verdict
from tests.fixtures.people import World
from tests.fixtures.proofs import Hand, by_the_plane
from tests.fixtures.servers import VAULT


@pytest.fixture(autouse=True)
def _as_a_process_that_just_started() -> Iterator[None]:
    audit._compared_orgs.clear()
    yield
    audit._compared_orgs.clear()


async def _heads(admin: asyncpg.Connection) -> list[tuple[Any, ...]]:
    rows = await admin.fetch("select root_seq, chain_id, audit_seq from audit_root_head order by root_seq, chain_id")
    return [tuple(row) for row in rows]


async def _whole(db: Database, world: World) -> int:
    """Both ways of verifying agree that nothing is wrong; how many roots there are."""
    found = await verify_org(db, world.org_id)
    assert (found.faults, found.root_faults) == ([], [])
    export = await exported(db, world.admin.actor)
    alone = by_the_plane(export)
    assert alone is not None
    assert found.keys_checked
    assert not alone.keys_checked, "a file does not hold the master key"
    assert replace(alone, keys_checked=True) == found
    assert verdict(export).code == 0
    return found.roots


@pytest.mark.proves("D.173")
async def test_a_root_covers_what_grew_since_the_one_before(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    first = (await world.say("one")).session_id
    made = await audit.make_root_now(db, world.admin.actor)
    assert (made.made, made.root.seq, made.root.covers, made.root.chains) == (True, 1, 2, 2)
    assert made.root.previous == GENESIS.hex()
    body = orjson.loads(made.root.body)
    assert (body["format"], body["org"], body["seq"]) == ("cortex-root", str(world.org_id), 1)
    again = await audit.make_root_now(db, world.admin.actor)
    assert (again.made, again.root) == (False, made.root), "nothing new, nothing to cover"
    await world.say("two")
    second = (await world.say("three", external_user_id="u-2")).session_id
    newer = await audit.make_root_now(db, world.admin.actor)
    assert (newer.root.seq, newer.root.covers, newer.root.chains) == (2, 2, 3)
    assert newer.root.previous == made.root.hash
    covered = await _heads(admin)
    assert {(root, chain) for root, chain, _ in covered} == {
        (1, world.org_id), (1, first), (2, first), (2, second),
    }  # fmt: skip
    assert await _whole(db, world) == 2
    listed = await audit.list_roots(db, world.admin.actor, None, 10)
    assert [root.seq for root in listed] == [2, 1]
    assert [root.seq for root in await audit.list_roots(db, world.admin.actor, 2, 10)] == [1]


async def test_what_does_not_fit_into_one_root_is_the_next_ones(
    db: Database, world: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "CHAINS_AT_ONCE", 2)
    for n in range(4):
        await world.say(external_user_id=f"u-{n}")
    assert await audit.make_root(db, world.org_id) == 3
    for n in range(3):
        await world.say(external_user_id=f"u-{n}")
    assert await audit.make_root(db, world.org_id) == 2
    covers = [root.covers for root in await audit.list_roots(db, world.admin.actor, None, 10)][::-1]
    assert covers == [2, 2, 1, 2, 1]
    assert await _whole(db, world) == 5


async def test_only_what_changed_is_looked_at(db: Database, world: World, admin: asyncpg.Connection) -> None:
    """The second root finds its chains by an index, and reads nothing of those that stood still."""
    for n in range(20):
        await world.say(external_user_id=f"u-{n}")
    await audit.make_root(db, world.org_id)
    await world.say("more", external_user_id="u-3")
    await admin.execute("analyze")
    last = await admin.fetchval("select snapshot::text from audit_root")
    query = (proof_store.queries.grown_chains).replace("$1", f"'{last}'").replace("$2", "100")
    async with admin.transaction():
        await admin.execute("set local role cortex_app")
        await admin.execute("set local enable_seqscan = off")
        await admin.execute("select set_config('app.org_id', $1, true)", str(world.org_id))
        found = await admin.fetch(query)
        plan = "\n".join(row[0] for row in await admin.fetch(f"explain {query}"))
    assert len(found) == 1
    assert "idx_audit_entry_xid" in plan


async def test_a_late_commit_is_covered_by_the_next_root(db: Database, world: World, admin: asyncpg.Connection) -> None:
    """Appended before a root and committed after it: no clock would tell, the transaction does."""
    session = (await world.say("one")).session_id
    await audit.make_root(db, world.org_id)
    slow = admin.transaction()
    await slow.start()
    append = "select session_append($1, $2, 0, '{}', '{}', '{}', array['late'], array[$3::bytea])"
    await admin.execute(append, world.org_id, session, b'{"action":"late"}')
    await world.say("elsewhere", external_user_id="u-2")
    assert await audit.make_root(db, world.org_id) == 1
    await slow.commit()
    assert await audit.make_root(db, world.org_id) == 1
    assert [root for root, chain, _ in await _heads(admin) if chain == session] == [1, 3]
    assert await _whole(db, world) == 3


@pytest.mark.proves("D.173")
async def test_roots_are_made_while_chains_grow_and_everything_verifies(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    made: list[int] = []

    async def talk(person: str) -> None:
        """At least a few words, and on until roots were made in between."""
        n = 0
        while n < 10 or sum(made) < 5:
            await world.say(f"{n}", external_user_id=person)
            n += 1

    async def keep() -> None:
        while True:
            made.append(await audit.make_root(db, world.org_id))

    keeping = [asyncio.create_task(keep()) for _ in range(2)]
    async with asyncio.timeout(60):
        await asyncio.gather(*(talk(f"u-{n}") for n in range(4)))
    for task in keeping:
        task.cancel()
    await asyncio.gather(*keeping, return_exceptions=True)
    await audit.make_root(db, world.org_id)
    assert await _whole(db, world) >= 5
    uncovered = await admin.fetchval(
        """
        select count(*) from session_head s where s.audit_seq <> (
          select max(r.audit_seq) from audit_root_head r where r.chain_id = s.session_id)
        """
    )
    assert uncovered == 0


@pytest.mark.proves("D.174")
async def test_two_schedulers_at_once_make_one_root_an_hour_for_each_org(
    db: Database, world: World, other: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, datetime(2026, 3, 1, tzinfo=UTC))
    await world.say()
    count = "select org_id, count(*), max(seq) from audit_root group by org_id"
    for hour in (1, 2, 3):
        await asyncio.gather(*(audit.keep_roots(db) for _ in range(4)))
        await audit.keep_roots(db)
        found = {row[0]: (row[1], row[2]) for row in await admin.fetch(count)}
        # Nothing happens in the other org, so there is nothing to cover a second time.
        assert found == {world.org_id: (hour, hour), other.org_id: (1, 1)}
        await world.say(f"{hour}")
        await clock.advance(timedelta(minutes=59))
        await audit.keep_roots(db)
        assert await admin.fetchval("select count(*) from audit_root") == hour + 1, "not before its time"
        await clock.advance(timedelta(minutes=1))
    assert await _whole(db, world) == 3


async def test_one_org_whose_root_fails_keeps_no_other_from_its_own(
    db: Database, world: World, other: World, admin: asyncpg.Connection
) -> None:
    async with db.transaction(world.org_id) as tx:
        await receipts.get_signer(db, tx)
    await admin.execute("update signing_key set sealed = 'nonsense' where org_id = $1", world.org_id)
    await audit.keep_roots(db)
    assert await admin.fetchval("select array_agg(org_id) from audit_root") == [other.org_id]


# Tampering in the database -----------------------------------------------------------------------------------


async def _rewritten(admin: asyncpg.Connection, chain: Any) -> None:
    """A whole chain written anew, with its head: it verifies by itself."""
    previous = GENESIS
    for row in await admin.fetch("select * from audit_entry where chain_id = $1 order by seq", chain):
        body = row["body"].replace(b"u-1", b"u-9")
        body_hash = hashlib.sha256(body).digest()
        previous = chain_hash(previous, row["seq"], row["created_at"], row["action"], row["job_id"], body_hash)
        await admin.execute(
            "update audit_entry set body = $3, body_hash = $4, hash = $5 where chain_id = $1 and seq = $2",
            chain, row["seq"], body, body_hash, previous,
        )  # fmt: skip
    await admin.execute("update session_head set audit_hash = $2 where session_id = $1", chain, previous)


@pytest.mark.proves("D.175")
async def test_what_a_chain_alone_cannot_show_its_root_does(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    session = (await world.say("one")).session_id
    await world.say("two", external_user_id="u-2")
    await audit.make_root(db, world.org_id)
    whole = "delete from {} where chain_id = $1"
    gone = [
        whole.format("audit_entry"),
        "delete from session_head where session_id = $1",
        "delete from event where session_id = $1", "delete from message where session_id = $1",
        "delete from job_history where job_id in (select id from job where session_id = $1)",
        "delete from job where session_id = $1", "delete from session where id = $1",
    ]  # fmt: skip
    cut = [
        "delete from audit_entry where chain_id = $1 and seq = 4",
        """
        update session_head set audit_seq = 3,
          audit_hash = (select hash from audit_entry where chain_id = $1 and seq = 3)
        where session_id = $1
        """,
    ]
    cases: list[tuple[list[str], list[Fault], list[RootFault]]] = [
        (cut, [Fault(chain_id=session, seq=4, reason="it is missing, and root 1 covers it")], []),
        (gone, [Fault(chain_id=session, seq=4, reason="it is missing, and root 1 covers it")], []),
        (
            [*gone, "delete from audit_root_head where chain_id = $1"],
            [],
            [RootFault(root=1, reason="it covers 3 chains, and 2 of them are here")],
        ),
    ]
    for statements, faults, root_faults in cases:
        tampering = admin.transaction()
        await tampering.start()
        for statement in statements:
            await admin.execute(statement, session)
        found = await _verified_in(admin, world)
        assert (found.faults, found.root_faults) == (faults, root_faults)
        await tampering.rollback()
    await _rewritten(admin, session)
    found = await verify_org(db, world.org_id)
    assert found.faults == [Fault(chain_id=session, seq=4, reason="root 1 holds another hash of it")]
    export = await exported(db, world.admin.actor)
    assert f"chain {session}: entry 4: root 1 holds another hash of it" in verdict(export).said


async def _verified_in(admin: asyncpg.Connection, world: World) -> Any:
    """As `verify_org`, inside a transaction that is rolled back afterwards."""
    return await audit.verify_snapshot(Transaction(admin, world.org_id), VAULT)


@pytest.mark.proves("D.176")
async def test_a_root_that_was_changed_removed_or_moved_is_named(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    for n in range(3):
        await world.say(f"{n}")
        await audit.make_root(db, world.org_id)
    follows = "its hash does not follow from its body and the one before"
    swap = "update audit_root r set body = o.body, hash = o.hash, signature = o.signature from audit_root o"
    cases = [
        ("update audit_root set body = body || ' ' where seq = 2", 2, follows),
        ("update audit_root set hash = sha256('x') where seq = 1", 1, follows),
        ("update audit_root set signature = sha512('x') where seq = 3", 3, "its signature is false"),
        (f"{swap} where (r.seq, o.seq) in ((1, 2), (2, 1))", 1, follows),
        (
            "update signing_key set public_key = sha256('x')", 1, _strange(hashlib.sha256(b"x").digest()),
        ),
        (
            """
            delete from audit_root_head where root_seq = 3; delete from audit_root where seq = 3;
            insert into audit_root_head select org_id, 2, gen_random_uuid(), 1, hash from audit_root_head limit 1
            """,
            2, "it covers 1 chains, and 2 of them are here",
        ),
        (
            "alter table audit_root_head drop constraint fk_audit_root_head_root; delete from audit_root where seq = 2",
            2, "it is missing; the next one is 3",
        ),
    ]  # fmt: skip
    for statement, root, reason in cases:
        tampering = admin.transaction()
        await tampering.start()
        await admin.execute(statement)
        found = await _verified_in(admin, world)
        assert found.root_faults == [RootFault(root=root, reason=reason)], statement
        await tampering.rollback()
    assert await _whole(db, world) == 3


def _strange(public_key: bytes) -> str:
    return (
        f"it is signed with {fingerprint(public_key)}, which is no key of the plane: its private half does not open"
        " with the master key"
    )


async def _signed_anew(admin: asyncpg.Connection, world: World, hand: Hand, sealed: bytes) -> None:
    """A writer of the database puts a key of their own there and signs every root with it."""
    await admin.execute(
        "insert into signing_key (org_id, id, public_key, sealed, retired_at) values ($1, $2, $3, $4, plane_now())",
        world.org_id, hand.id, hand.public, sealed,
    )  # fmt: skip
    for root in await admin.fetch("select seq, body from audit_root"):
        await admin.execute(
            "update audit_root set key_id = $1, signature = $2 where seq = $3",
            hand.id, hand.private.sign(root["body"]), root["seq"],
        )  # fmt: skip


@pytest.mark.proves("D.176", "D.177")
@pytest.mark.parametrize("how", ["not at all", "with another master key", "for another org", "another key"])
async def test_a_root_signed_with_a_key_that_the_plane_did_not_make_is_a_fault(
    db: Database, world: World, other: World, admin: asyncpg.Connection, urls: Any, how: str
) -> None:
    await audit.make_root(db, world.org_id)
    mallory, private = Hand(9), Hand(9).private.private_bytes_raw()
    sealed = {
        "not at all": private,
        "with another master key": Vault(bytes(32)).seal(world.org_id, receipts.PURPOSE, private),
        "for another org": VAULT.seal(other.org_id, receipts.PURPOSE, private),
        "another key": await admin.fetchval("select sealed from signing_key"),
    }[how]
    await _signed_anew(admin, world, mallory, sealed)
    found = await verify_org(db, world.org_id)
    assert found.root_faults == [RootFault(root=1, reason=_strange(mallory.public))]
    assert (found.keys_checked, found.fingerprints) == (True, [])
    without = await Database.open(urls.app, max_size=1)
    try:
        unchecked = await verify_org(without, world.org_id)
    finally:
        await without.close()
    assert (unchecked.root_faults, unchecked.keys_checked) == ([], False), "nobody can tell, and it says so"
    assert unchecked.fingerprints == [mallory.fingerprint]


async def test_a_key_that_signed_nothing_breaks_nothing(db: Database, world: World, admin: asyncpg.Connection) -> None:
    await audit.make_root(db, world.org_id)
    stranger = Hand(9)
    await admin.execute(
        "insert into signing_key (org_id, id, public_key, sealed, retired_at) values ($1, $2, $3, '', plane_now())",
        world.org_id, stranger.id, stranger.public,
    )  # fmt: skip
    found = await verify_org(db, world.org_id)
    assert (found.root_faults, stranger.fingerprint in found.fingerprints) == ([], False)


async def test_erased_bodies_still_verify(db: Database, world: World, admin: asyncpg.Connection) -> None:
    session = (await world.say()).session_id
    await audit.make_root(db, world.org_id)
    await erase(world, session, {3: "message_received"})
    await admin.execute("update audit_entry set body = null where chain_id = $1 and seq = 3", session)
    assert await _whole(db, world) == 1


async def test_a_database_that_was_restored_elsewhere_loses_no_chain(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    """There transactions are counted anew: what the last root saw says nothing, so everything is compared."""
    await world.say("before")
    await audit.make_root(db, world.org_id)
    far = "update audit_root set snapshot = '4000000000:4000000000:', created_at = '2020-01-01'"
    await admin.execute(far)
    await admin.execute("update audit_entry set xid = '3999999999'::xid8")
    session = (await world.say("after", external_user_id="u-2")).session_id
    assert await audit.make_root(db, world.org_id) == 1
    assert session in {chain for root, chain, _ in await _heads(admin) if root == 2}


# Keys --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.177")
async def test_one_key_is_made_however_many_need_it_first(
    db: Database, world: World, other: World, admin: asyncpg.Connection
) -> None:
    async def need(org: Any) -> Any:
        async with db.transaction(org) as tx:
            return (await receipts.get_signer(db, tx)).id

    ids = await asyncio.gather(*(need(world.org_id) for _ in range(8)), need(other.org_id))
    assert len(set(ids[:8])) == 1
    assert ids[8] != ids[0]
    assert await admin.fetchval("select count(*) from signing_key") == 2
    (key,) = await receipts.list_signing_keys(db, world.admin.actor)
    raw = await admin.fetchval("select public_key from signing_key where org_id = $1", world.org_id)
    assert (key.id, key.fingerprint, key.retired_at) == (ids[0], hashlib.sha256(raw).hexdigest(), None)


@pytest.mark.proves("D.177")
async def test_a_rotated_key_signs_nothing_new_and_what_it_signed_stays_valid(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    await audit.make_root(db, world.org_id)
    await world.say()
    # Once more, so that this process has the old key open.
    await audit.make_root(db, world.org_id)
    new = await receipts.rotate_signing_key(db, world.admin.actor)
    await audit.make_root(db, world.org_id)
    newest, *_, first = await audit.list_roots(db, world.admin.actor, None, 10)
    old, active = await receipts.list_signing_keys(db, world.admin.actor)
    assert (newest.fingerprint, first.fingerprint) == (new.fingerprint, old.fingerprint)
    assert (active.id, active.retired_at) == (new.id, None)
    assert old.retired_at is not None
    assert await _whole(db, world) == 3
    found = await verify_org(db, world.org_id)
    assert found.fingerprints == [old.fingerprint, new.fingerprint]
    entries = await audit.list_entries(db, world.admin.actor, None, 0, 100)
    assert (entries[-1].action, entries[-1].body and entries[-1].body["data"]["new"]) == (
        "signing_key_rotated",
        new.fingerprint,
    )
    outcomes = await asyncio.gather(
        *(receipts.rotate_signing_key(db, world.admin.actor) for _ in range(4)), return_exceptions=True
    )
    assert all(isinstance(each, Conflict) or not isinstance(each, BaseException) for each in outcomes)
    assert await admin.fetchval("select count(*) from signing_key where retired_at is null") == 1


@pytest.mark.proves("D.177")
async def test_who_may_make_roots_and_rotate_keys(db: Database, world: World) -> None:
    member, operator = await world.person(Role.MEMBER), await world.person(Role.OPERATOR, name="Op")
    assert (await audit.make_root_now(db, operator.actor)).made
    for refused in (
        audit.make_root_now(db, member.actor), audit.list_roots(db, member.actor, None, 1),
        receipts.list_signing_keys(db, member.actor), receipts.rotate_signing_key(db, operator.actor),
    ):  # fmt: skip
        with pytest.raises(Forbidden):
            await refused
