"""What one org may take of a process: requests in flight, connections, long reads, streams, rows about refused decisions."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.approvals.verbs.decisions import MOST_REFUSED
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db import pool
from cortex_plane.db.database import Database
from cortex_plane.db.pool import PoolPurpose
from cortex_plane.http.app import Api, framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.errors import TooMany, Unavailable
from cortex_plane.kernel.ids import new_id
from cortex_plane.main.api_process import create_app
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs.frame import (
    AFTER_OTHERS,
    AFTER_SECONDS,
    BESIDE_OTHERS,
    BESIDE_SECONDS,
    FLOOD,
    WORK_SECONDS,
    InFlight,
    OpenStreams,
    RequestLimits,
    leave,
    others_wait,
)
from tests.approvals.test_http_approvals import Door
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, ship, waiting
from tests.fixtures.people import World
from tests.fixtures.servers import VAULT
from tests.http.test_http_bad_input import problem

POLICIES = "policies: [{name: ok, target: '*', effect: allow}]"


@asynccontextmanager
async def process(db: Database, limits: RequestLimits | None = None) -> AsyncIterator[tuple[httpx.AsyncClient, Api]]:
    """One API process, as a server would run it."""
    metrics = Metrics()
    app = create_app(db, metrics, limits=limits or RequestLimits())
    transport = httpx.ASGITransport(framed(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://plane") as client:
        yield client, app
    app.state.feed.close()
    metrics.close()


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 -- a counter tells nobody that it changed
            await asyncio.sleep(0.005)


# Requests in flight ------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.621")
async def test_requests_in_flight_of_one_org_are_bounded_and_others_are_served(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    limits = RequestLimits(in_flight=8, in_flight_of_org=3)
    async with process(world.db, limits) as (http, app):
        path, change = f"/v1/agents/{world.agent.slug}", {"name": "renamed"}
        async with admin.transaction():
            await admin.execute("select from agent where id = $1 for update", world.agent.id)
            held = [asyncio.create_task(http.patch(path, json=change, headers=world.admin.headers)) for _ in range(3)]
            flight = app.state.in_flight
            await _until(lambda: flight.held_by(world.org_id.int) == 3)
            refused = await http.get("/v1/me", headers=world.admin.headers)
            assert problem(refused, 429, "too_many_in_flight")
            assert refused.headers["retry-after"] == "1"
            served = await http.get("/v1/me", headers=other.admin.headers)
            assert served.status_code == 200, served.text
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        assert (await http.get("/v1/me", headers=world.admin.headers)).status_code == 200
        assert flight.free == 8, "every request has left"


@pytest.mark.proves("D.621")
async def test_beside_others_few_requests_of_one_org_are_worked_on_and_the_rest_wait(
    world: World, other: World, admin: asyncpg.Connection
) -> None:
    async with process(world.db) as (http, app):
        now = [0.0]
        flight = app.state.in_flight = InFlight(clock=lambda: now[0])
        path, change = f"/v1/agents/{world.agent.slug}", {"name": "renamed"}
        assert (await http.get("/v1/me", headers=other.admin.headers)).status_code == 200
        async with admin.transaction():
            await admin.execute("select from agent where id = $1 for update", world.agent.id)
            held = [
                asyncio.create_task(http.patch(path, json=change, headers=world.admin.headers))
                for _ in range(BESIDE_OTHERS + 3)
            ]
            await _until(lambda: len(flight._waiting.get(world.org_id.int, ())) == 3)
            assert len(flight._begun[world.org_id.int]) == BESIDE_OTHERS
            held.pop().cancel()
            assert (await http.get("/v1/me", headers=other.admin.headers)).status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}
        assert (flight._begun, flight._waiting) == ({}, {})
        # Whoever is alone waits for nobody.
        now[0] += AFTER_SECONDS
        async with admin.transaction():
            await admin.execute("select from agent where id = $1 for update", world.agent.id)
            held = [
                asyncio.create_task(http.patch(path, json=change, headers=world.admin.headers))
                for _ in range(BESIDE_OTHERS + 1)
            ]
            await _until(lambda: len(flight._begun.get(world.org_id.int, ())) == BESIDE_OTHERS + 1)
        assert {answer.status_code for answer in await asyncio.gather(*held)} == {200}


@pytest.mark.proves("D.621")
async def test_an_org_that_is_alone_is_never_held_up(world: World) -> None:
    """Neither from its first request on, nor with hundreds at once."""
    now = [0.0]
    flight = InFlight(clock=lambda: now[0])
    scopes: list[dict[str, Any]] = [{"state": {}} for _ in range(200)]
    for scope in scopes:
        await asyncio.wait_for(flight.enter(scope, world.org_id), 1)
    assert (len(flight._begun[world.org_id.int]), flight._waiting, flight._timed) == (200, {}, set())
    for scope in scopes:
        leave(scope)
    assert (flight._begun, flight._paused, flight.free) == ({}, set(), RequestLimits().in_flight)


@pytest.mark.proves("D.621")
async def test_one_request_of_another_org_does_not_put_the_next_ones_in_single_file(world: World, other: World) -> None:
    """A dashboard that polls, or a set-up by another org: only while others send requests is one worked on at a time."""
    now = [0.0]
    flight = InFlight(clock=lambda: now[0])

    async def enter(org: UUID) -> dict[str, Any]:
        scope: dict[str, Any] = {"state": {}}
        await flight.enter(scope, org)
        return scope

    leave(await enter(other.org_id))
    mine = [asyncio.create_task(enter(world.org_id)) for _ in range(AFTER_OTHERS + 3)]
    await _until(lambda: flight.held_by(world.org_id.int) == len(mine))
    assert len(flight._begun[world.org_id.int]) == BESIDE_OTHERS, "the other one was here a moment ago"
    now[0] += BESIDE_SECONDS
    leave(await mine.pop(0))
    assert flight._paused == set(), "no pause"
    assert len(flight._begun[world.org_id.int]) == AFTER_OTHERS
    assert len(flight._waiting[world.org_id.int]) == len(mine) - AFTER_OTHERS
    # Only until it is certain that the other one does not come again.
    now[0] += AFTER_SECONDS
    leave(await mine.pop(0))
    assert (len(flight._begun[world.org_id.int]), flight._waiting) == (len(mine), {})
    for request in mine:
        leave(await request)
    assert (flight._begun, flight.free) == ({}, RequestLimits().in_flight)


@pytest.mark.proves("D.621")
async def test_an_org_that_floods_pauses_between_its_requests_beside_others(world: World, other: World) -> None:
    now = [0.0]
    flight = InFlight(clock=lambda: now[0])

    async def enter(org: UUID) -> Any:
        scope: dict[str, Any] = {"state": {}}
        await flight.enter(scope, org)
        return scope

    leave(await enter(other.org_id))
    first = await enter(world.org_id)
    flood = [asyncio.create_task(enter(world.org_id)) for _ in range(FLOOD + 2)]
    await _until(lambda: len(flight._waiting.get(world.org_id.int, ())) == len(flood))
    now[0] += WORK_SECONDS / 2
    leave(first)
    assert flight._begun[world.org_id.int] == [], "none begins right after the first"
    flood.append(asyncio.create_task(enter(world.org_id)))
    await _until(lambda: len(flight._waiting[world.org_id.int]) == len(flood))
    assert flight._begun[world.org_id.int] == [], "nor when another one comes"
    for request in flood:
        leave(await asyncio.wait_for(request, 10))
    assert (flight._begun, flight._waiting, flight._paused) == ({}, {}, set())


@pytest.mark.proves("D.621")
@pytest.mark.parametrize("passed", [WORK_SECONDS, BESIDE_SECONDS, AFTER_SECONDS])
async def test_nobody_waits_for_requests_that_wait_for_something_else(
    world: World, other: World, admin: asyncpg.Connection, passed: float
) -> None:
    """Neither while others send requests, nor once they have stopped."""
    async with process(world.db) as (http, app):
        now = [0.0]
        flight = app.state.in_flight = InFlight(clock=lambda: now[0])
        assert (await http.get("/v1/me", headers=other.admin.headers)).status_code == 200
        async with admin.transaction():
            await admin.execute("select from agent where id = $1 for update", world.agent.id)
            path, change = f"/v1/agents/{world.agent.slug}", {"name": "renamed"}
            slow = [
                asyncio.create_task(http.patch(path, json=change, headers=world.admin.headers))
                for _ in range(BESIDE_OTHERS)
            ]
            await _until(lambda: len(flight._begun.get(world.org_id.int, ())) == BESIDE_OTHERS)
            quick = asyncio.create_task(http.get("/v1/me", headers=world.admin.headers))
            await _until(lambda: world.org_id.int in flight._waiting)
            now[0] += passed
            assert (await asyncio.wait_for(quick, 10)).status_code == 200
            again = http.get("/v1/me", headers=world.admin.headers)
            assert (await asyncio.wait_for(again, 10)).status_code == 200
        assert {answer.status_code for answer in await asyncio.gather(*slow)} == {200}
        await _until(lambda: not flight._timed)
        assert (flight._begun, flight._waiting) == ({}, {})


@pytest.mark.proves("D.621")
async def test_a_download_makes_way_for_other_orgs(world: World, other: World) -> None:
    now = [0.0]
    flight = InFlight(clock=lambda: now[0])
    scope: dict[str, Any] = {"state": {}}
    await flight.enter(scope, world.org_id)
    others = others_wait(scope)
    leave(scope)
    assert not others()
    await flight.enter({"state": {}}, other.org_id)
    assert others()
    now[0] += AFTER_SECONDS
    assert not others()


@pytest.mark.proves("D.621")
async def test_an_org_that_is_alone_has_all_places_but_the_reserve(world: World, other: World) -> None:
    flight = InFlight(RequestLimits(in_flight=40))
    for _ in range(36):
        await asyncio.wait_for(flight.enter({"state": {}}, world.org_id), 1)
    with pytest.raises(TooMany):
        await flight.enter({"state": {}}, world.org_id)
    await asyncio.wait_for(flight.enter({"state": {}}, other.org_id), 1)


@pytest.mark.proves("D.621")
async def test_streams_of_one_org_are_bounded_whoever_opens_them(world: World, other: World) -> None:
    streams = OpenStreams(most_of_org=2)
    ends = [
        streams.open(world.admin.actor.identity, world.admin.actor.org_id),
        streams.open(world.service.actor.identity, world.service.actor.org_id),
    ]
    with pytest.raises(TooMany) as refused:
        streams.open(world.service.actor.identity, world.service.actor.org_id)
    assert refused.value.code == "too_many_streams"
    streams.open(other.admin.actor.identity, other.admin.actor.org_id)()
    ends.pop()()
    streams.open(world.admin.actor.identity, world.admin.actor.org_id)()


# Connections -------------------------------------------------------------------------------------------------------


@pytest.fixture
async def small(urls: Urls) -> AsyncIterator[Database]:
    """Four ordinary connections, of which one is kept for orgs that have none."""
    db = await Database.open(urls.app, max_size=4, vault=VAULT)
    yield db
    await db.close()


@pytest.mark.proves("D.622")
async def test_an_org_that_holds_all_connections_it_may_leaves_some_to_others_and_to_decisions(
    strict: World, other: World, small: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ACQUIRE_SECONDS", 0.05)
    _, (approval,) = await waiting(strict, Shipping(), ship())
    async with process(small) as (http, _), AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(small.transaction(other.org_id))
        with pytest.raises(Unavailable):
            await stack.enter_async_context(small.transaction(other.org_id))
        read = await http.get("/v1/approvals", headers=strict.admin.headers)
        assert read.status_code == 200, read.text
        # Even where others hold what was kept for those who have none.
        await stack.enter_async_context(small.transaction(new_id()))
        starved = await http.get("/v1/approvals", headers=strict.admin.headers)
        assert problem(starved, 503, "busy")
        seen = {"version": approval.version, "input_hash": approval.input_hash}
        decided = await http.post(
            f"/v1/approvals/{approval.id}/decide", headers=strict.admin.headers, json={"decision": "approved", **seen}
        )
        assert decided.status_code == 200, decided.text
        scheduler = small.own(PoolPurpose.SCHEDULER)
        await deadlines.tick(scheduler, new_id(), "test")
        assert await deadlines.seconds_to_next(small.own(PoolPurpose.NOTIFIER)) is None


def _append(turns: list[UUID], org: UUID, _: object) -> None:
    turns.append(org)


@pytest.mark.proves("D.622")
async def test_orgs_that_wait_for_a_connection_take_turns(world: World, other: World, small: Database) -> None:
    turns: list[UUID] = []

    async def use(org: UUID) -> None:
        async with small.transaction(org):
            pass

    async with AsyncExitStack() as stack:
        for _ in range(3):
            await stack.enter_async_context(small.transaction(world.org_id))
        await stack.enter_async_context(small.transaction(new_id()))
        flood = [asyncio.create_task(use(world.org_id)) for _ in range(10)]
        await _until(lambda: len(small._shared._waiting.get(world.org_id, ())) == 10)
        late = asyncio.create_task(use(other.org_id))
        await _until(lambda: other.org_id in small._shared._waiting)
        for org, queue in small._shared._waiting.items():
            for turn in queue:
                turn.add_done_callback(partial(_append, turns, org))
    await asyncio.gather(*flood, late)
    assert turns.index(other.org_id) <= 1, "not behind the ten that asked before"
    assert small._shared._waiting == {}
    assert small._shared._shares.free == 4


@pytest.mark.proves("D.622")
async def test_nobody_who_waits_for_a_connection_is_forgotten(
    world: World, other: World, small: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of several orgs, with and without a purpose, some of whom give up: in the end all places are free again."""
    monkeypatch.setattr(pool, "ACQUIRE_SECONDS", 60)
    orgs, served = [world.org_id, other.org_id, new_id()], [0]

    async def use(number: int) -> None:
        db = small.own(PoolPurpose.DECISIONS) if number % 3 == 0 else small
        async with db.transaction(orgs[number % 7 % 3]):
            await asyncio.sleep(0)
        served[0] += 1

    for _ in range(5):
        tasks = [asyncio.create_task(use(number)) for number in range(60)]
        await asyncio.sleep(0)
        for task in tasks[5::10]:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    assert served[0] == 5 * (60 - 6)
    assert (small._shared._waiting, small._shared._shares.free, small._shared._own) == ({}, 4, pool.OWN)


# Long reads --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.622")
async def test_decisions_stay_on_connections_that_nothing_else_uses(world: World, urls: Urls) -> None:
    async def backend(view: Database) -> int:
        async with view.transaction(world.org_id) as tx:
            pid: int = await tx.value("select pg_backend_pid()")
            return pid

    db = await Database.open(urls.app, max_size=4)
    try:
        decisions = db.own(PoolPurpose.DECISIONS)
        own = await backend(decisions)
        async with AsyncExitStack() as held:
            transactions = [
                await held.enter_async_context(db.transaction(org)) for org in (world.org_id, world.org_id, new_id())
            ]
            ordinary = {await tx.value("select pg_backend_pid()") for tx in transactions}
            assert own not in ordinary
            assert [await backend(decisions) for _ in range(3)] == [own] * 3
        assert await backend(decisions) == own
    finally:
        await db.close()


@pytest.mark.proves("D.627")
async def test_long_reads_run_few_at_a_time_and_the_others_are_told_when_to_come_back(
    world: World, other: World, urls: Urls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pool, "ACQUIRE_SECONDS", 60)
    db = await Database.open(urls.app, max_size=4, vault=VAULT)
    body = {"text": POLICIES}
    async with process(db) as (http, _):
        with db.heavy_read(world.org_id), db.heavy_read(world.org_id):
            for method, path in (("POST", "/v1/policies/simulate"), ("GET", "/v1/audit/verification"),
                                 ("GET", "/v1/audit/export"), ("GET", "/v1/usage?by=day")):  # fmt: skip
                answer = await http.request(
                    method, path, headers=world.admin.headers, json=body if method == "POST" else None
                )
                assert problem(answer, 429, "too_many_reads"), path
                assert answer.headers["retry-after"] == "5"
            mine = await http.post("/v1/policies/simulate", headers=other.admin.headers, json=body)
            assert mine.status_code == 200, mine.text
        flood = await asyncio.gather(
            *(http.post("/v1/policies/simulate", headers=world.admin.headers, json=body) for _ in range(40))
        )
        counted = Counter(answer.status_code for answer in flood)
        assert set(counted) <= {200, 429}
        assert counted[200] >= 1
        assert (await http.get("/v1/audit/export", headers=world.admin.headers)).status_code == 200
        assert db._heavy.free == 4
    await db.close()


# Refused decisions -------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.624")
async def test_refused_decisions_of_a_person_are_counted_in_one_row_after_the_tenth(
    strict: World, http: httpx.AsyncClient, admin: asyncpg.Connection
) -> None:
    _, (approval,) = await waiting(strict, Shipping(), ship())
    # Not the owner, so every decision of theirs is refused.
    pest, door = await strict.person(Role.APPROVER, name="Pest"), Door(http, strict.admin)
    card = await door.get(f"approvals/{approval.id}")
    for _ in range(60):
        answer = await Door(http, pest).decide(card)
        assert answer.status_code == 403, answer.text
    refused = [e for e in (await door.get(f"approvals/{approval.id}"))["events"] if e["event_type"] == "refused"]
    assert [event["times"] for event in refused] == [1] * MOST_REFUSED + [50]
    trail = await door.get("audit", session_id=str(approval.session_id), limit=200)
    entries = [entry for entry in trail["items"] if entry["action"] == "approval_refused"]
    assert len(entries) == MOST_REFUSED + 1
    assert "counted on the card" in str(entries[-1]), "the last one says where the rest is"
    # Somebody else's first refusal has a row of its own.
    await Door(http, await strict.person(Role.APPROVER, name="Other")).decide(card)
    refused = [e for e in (await door.get(f"approvals/{approval.id}"))["events"] if e["event_type"] == "refused"]
    assert (refused[-1]["actor"], refused[-1]["times"]) == ("Other", 1)
    assert (await door.decide(card)).status_code == 200, "whoever may decide does"
