"""What gates remember, beside jobs of the same session: locked in one order, and never gone around by a late binding."""

from __future__ import annotations

import asyncio
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.calls.verbs.external import TRIES, retry_under_session_lock
from cortex_plane.db.database import Database, at_hand
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.model.sessions import SessionDraft, SessionKind
from cortex_plane.tenancy.model.access import Fact
from tests.fixtures.atlases import ATLAS, manifest, publish
from tests.fixtures.people import World
from tests.fixtures.waits import lock_waiters
from tests.storage.leases import Held, call, ledger, make_worker, step

OTHER = "com.acme.other"


async def _held(world: World, *atlases: str) -> tuple[UUID, Held]:
    session = await session_lifecycle.create(
        world.db, world.admin.actor, SessionDraft(agent="deployer", atlases=list(atlases))
    )
    await jobs.submit(world.db, world.admin.actor, JobDraft(agent="deployer", session_id=session.id))
    return session.id, await Held.claim(world.db, await make_worker(world.db))


async def _bind(world: World, session_id: UUID, *atlases: str) -> None:
    draft = JobDraft(agent="deployer", session_id=session_id, atlases=list(atlases))
    await jobs.submit(world.db, world.admin.actor, draft)


@pytest.mark.parametrize("remembered", [True, False])
async def test_a_write_that_replies_waits_for_the_gates_before_it_locks_the_session(
    world: World, admin: asyncpg.Connection, remembered: bool
) -> None:
    """Another job of the session has the gates and wants the session's head next: neither waits for the other for ever."""
    await publish(world, manifest())
    session_id, held = await _held(world, ATLAS)
    if remembered:
        assert await held.write(StepWrite(more={"gates": {"revision": 0, "state": {"executed": 1}}})) is not None
    transaction = admin.transaction()
    await transaction.start()
    await admin.execute(
        "insert into session_gates as g (org_id, session_id, revision, state, updated_at)"
        " values ($1, $2, 1, '{}', now()) on conflict (org_id, session_id) do update set updated_at = now()",
        world.org_id, session_id,
    )  # fmt: skip
    gates = {"revision": int(remembered), "state": {"executed": 2}}
    writing = asyncio.create_task(held.write(StepWrite(reply="hm", more={"gates": gates})))
    try:
        async with asyncio.timeout(60):
            while not await lock_waiters(admin, "advance_job"):
                assert not writing.done(), writing
                await asyncio.sleep(0.01)
        await admin.execute(
            "select from session_head where org_id = $1 and session_id = $2 for update nowait",
            world.org_id, session_id,
        )  # fmt: skip
    finally:
        await transaction.rollback()
        written = await asyncio.wait_for(writing, 60)
    assert written is not None
    kept = await admin.fetchrow("select revision, state from session_gates where session_id = $1", session_id)
    assert kept is not None
    assert (kept["revision"], "2" in str(kept["state"])) == (1 + remembered, True)


@pytest.mark.proves("D.325")
async def test_an_attempt_sends_nothing_that_an_atlas_which_came_meanwhile_did_not_look_at(
    world: World, admin: asyncpg.Connection
) -> None:
    await publish(world, manifest())
    await publish(world, manifest(atlas_id=OTHER))
    session_id, held = await _held(world)
    intent = ledger(call(step=0))
    await _bind(world, session_id, ATLAS)
    with pytest.raises(Conflict) as ungoverned:
        await held.write(StepWrite(step=step(0), **intent, dispatches=True))
    assert ungoverned.value.code == "gates_changed"
    assert await admin.fetchval("select count(*) from tool_call") == 0, "nothing of the write happened"
    # What sends nothing is written; who looked at the atlas sends.
    assert await held.write(StepWrite(step=step(0))) is not None
    looked = {"gates": {"revision": 0, "atlases": 1}}
    await _bind(world, session_id, OTHER)
    with pytest.raises(Conflict) as another:
        await held.write(StepWrite(**intent, dispatches=True, more=looked))
    assert another.value.code == "gates_changed"
    looked["gates"]["atlases"] = 2
    assert await held.write(StepWrite(**intent, dispatches=True, more=looked)) is not None
    assert await admin.fetchval("select count(*) from tool_call where status = 'intended'") == 1


@pytest.mark.proves("D.384")
async def test_who_was_overtaken_acts_under_the_locks_of_the_session_with_one_connection(
    world: World, admin: asyncpg.Connection
) -> None:
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    session = (await session_lifecycle.create(world.db, world.service.actor, draft)).id
    seen: list[str] = []

    async def is_locked() -> bool:
        try:
            await admin.execute("select from job where session_id = $1 for update nowait", session)
        except asyncpg.LockNotAvailableError:
            return True
        return False

    async def load(db: Database) -> str:
        assert not await is_locked(), "nobody waits while something is loaded"
        seen.append("loaded")
        return "there"

    async def note(db: Database, action: str) -> None:
        async with db.transaction(world.org_id) as tx:
            await proof_store.append_to_session(tx, session, [Fact.of(world.service.actor, action)])
            if action == "second_note":
                await tx.rows("select 1 / 0")

    async def act(db: Database) -> None:
        if not seen:
            assert not await is_locked(), "the first look costs no lock"
            seen.append("overtaken")
            raise Conflict("Somebody was faster.", code="gates_changed")
        assert await is_locked()
        known = "there" if "loaded" in seen else None
        assert await at_hand(db, known, load) == "there"
        await note(db, "first_note")
        with pytest.raises(InvalidInput):
            await note(db, "second_note")
        assert (await db.call("policies_version", world.org_id))[0] is not None
        seen.append("refused")
        raise Conflict("Not that.", code="gate_closed")

    with pytest.raises(Conflict) as refused:
        await retry_under_session_lock(world.db, world.service.actor, act, session=session)
    assert refused.value.code == "gate_closed"
    assert seen == ["overtaken", "loaded", "refused"]
    trail = await audit.list_entries(world.db, world.admin.actor, session, 0, 100)
    notes = [each.action for each in trail if each.action.endswith("_note")]
    assert notes == ["first_note"], "what was written before it was refused stays, and what failed does not"
    assert not await is_locked()


@pytest.mark.proves("D.384")
async def test_a_request_that_is_overtaken_again_and_again_ends_with_an_error(world: World) -> None:
    draft = SessionDraft(agent="deployer", kind=SessionKind.EXTERNAL)
    session = (await session_lifecycle.create(world.db, world.service.actor, draft)).id
    tries = 0

    async def act(_: Database) -> None:
        nonlocal tries
        tries += 1
        raise Conflict("The policies changed.", code="policy_changed")

    with pytest.raises(Conflict) as refused:
        await retry_under_session_lock(world.db, world.service.actor, act, session=session)
    assert (refused.value.code, tries) == ("retry", 1 + TRIES)
