"""So many requests a second for a key and for a person, in all processes together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.http.app import framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.kernel.errors import TooMany
from cortex_plane.main.api_process import create_app
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import KeyDraft
from cortex_plane.tenancy.verbs import keys, logins
from cortex_plane.tenancy.verbs.frame import BATCHES, BURST_SECONDS, RequestRates
from cortex_plane.worker.scheduler import CHORES
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.http.test_http_bad_input import problem

PER_SECOND = 5
BURST = PER_SECOND * BURST_SECONDS


class Watch:
    """The clock of a process."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
async def clock(admin: asyncpg.Connection) -> Clock:
    return await Clock.install(admin, datetime.now(UTC))


@asynccontextmanager
async def process(db: Database, watch: Watch) -> AsyncIterator[httpx.AsyncClient]:
    """One API process of several."""
    metrics = Metrics()
    app = create_app(db, metrics, rates=RequestRates(PER_SECOND, watch))
    async with httpx.AsyncClient(transport=httpx.ASGITransport(framed(app)), base_url="http://plane") as http:
        yield http
    app.state.feed.close()
    metrics.close()


async def statuses(http: httpx.AsyncClient, headers: dict[str, str], times: int) -> list[int]:
    return [(await http.get("/v1/me", headers=headers)).status_code for _ in range(times)]


@pytest.mark.proves("D.594")
async def test_key_that_asks_too_often_is_told_when_to_come_back(world: World, clock: Clock) -> None:
    watch = Watch()
    async with process(world.db, watch) as http:
        assert await statuses(http, world.service.headers, BURST) == [200] * BURST
        refused = await http.get("/v1/me", headers=world.service.headers)
        problem(refused, 429, "rate_limited")
        assert refused.headers["Retry-After"] == "1"
        assert await statuses(http, world.admin.headers, 3) == [200] * 3, "others are not slowed down"
        await clock.advance(timedelta(seconds=2))
        watch.now += 2
        after = await statuses(http, world.service.headers, 2 * PER_SECOND + 1)
        assert after == [200] * 2 * PER_SECOND + [429]


@pytest.mark.proves("D.594")
async def test_processes_share_one_budget(world: World, clock: Clock) -> None:
    async with process(world.db, Watch()) as one, process(world.db, Watch()) as other:
        answers = await asyncio.gather(
            *(each.get("/v1/me", headers=world.service.headers) for each in (one, other) * BURST)
        )
        counted = [answer.status_code for answer in answers]
        assert counted.count(200) == BURST
        assert counted.count(429) == BURST


@pytest.mark.proves("D.594")
async def test_keys_and_browsers_of_a_person_share_one_budget(world: World, clock: Clock) -> None:
    draft = KeyDraft(name="second", member_id=world.admin.member_id)
    second = (await keys.create_key(world.db, world.admin.actor, draft)).secret
    async with process(world.db, Watch()) as http:
        assert await statuses(http, world.admin.headers, BURST - 5) == [200] * (BURST - 5)
        others = {"Authorization": f"Bearer {second}"}
        assert await statuses(http, others, 6) == [200] * 5 + [429]
        link = await logins.issue_own_login_link(world.db, world.admin.actor)
        await http.post(link.url_path)
        page = await http.get("/")
        assert page.status_code == 429
        assert "Too many requests at once" in page.text


@pytest.mark.proves("D.594")
async def test_request_writes_nothing_and_one_that_is_refused_asks_nothing(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = 0
    take = tenancy_store.take_requests

    async def counted(
        db: Database, org_id: UUID, subjects: Sequence[UUID], want: int, per_second: float, burst: float
    ) -> tuple[int, float]:
        nonlocal calls
        calls += 1
        return await take(db, org_id, subjects, want, per_second, burst)

    monkeypatch.setattr(tenancy_store, "take_requests", counted)
    rates, actor = RequestRates(PER_SECOND, Watch()), world.service.actor
    for _ in range(BURST):
        await rates.take(world.db, actor)
    assert calls == BATCHES
    for _ in range(100):
        with pytest.raises(TooMany):
            await rates.take(world.db, actor)
    assert calls == BATCHES + 1


async def test_batch_that_nobody_used_is_void_and_the_budget_fills_again(world: World, clock: Clock) -> None:
    watch = Watch()
    idle, busy = RequestRates(PER_SECOND, watch), RequestRates(PER_SECOND, watch)
    await idle.take(world.db, world.service.actor)
    watch.now += 3600
    await clock.advance(timedelta(hours=1))
    for _ in range(BURST):
        await busy.take(world.db, world.service.actor)
    with pytest.raises(TooMany):
        await idle.take(world.db, world.service.actor)


@pytest.mark.proves("D.594")
async def test_few_requests_through_many_processes_do_not_use_a_budget_up(world: World, clock: Clock) -> None:
    """Ten processes behind a balancer: each takes a batch for the one request that reaches it now and then."""
    per_second, seconds, processes = 100, 60, 10
    watch = Watch()
    rates = [RequestRates(per_second, watch) for _ in range(processes)]
    refused = 0
    for second in range(seconds):
        for each in rates[second % 2 :: 2]:  # five requests a second
            try:
                await each.take(world.db, world.service.actor)
            except TooMany:
                refused += 1
        watch.now += 1
        await clock.advance(timedelta(seconds=1))
    assert refused == 0


@pytest.mark.proves("D.594")
async def test_process_that_is_busy_again_takes_whole_batches_again(
    world: World, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted: list[int] = []
    take = tenancy_store.take_requests

    async def noted(
        db: Database, org_id: UUID, subjects: Sequence[UUID], want: int, per_second: float, burst: float
    ) -> tuple[int, float]:
        wanted.append(want)
        return await take(db, org_id, subjects, want, per_second, burst)

    monkeypatch.setattr(tenancy_store, "take_requests", noted)
    watch = Watch()
    rates, actor = RequestRates(100, watch), world.service.actor
    await rates.take(world.db, actor)
    watch.now += 3600
    await clock.advance(timedelta(hours=1))
    for _ in range(500):
        await rates.take(world.db, actor)
    assert wanted[0] == 100
    assert wanted[1] < 10, "it used one of a hundred"
    assert wanted[-1] == 100
    assert len(wanted) < 15


async def test_limit_of_zero_is_none(world: World) -> None:
    rates = RequestRates(0)
    for _ in range(1000):
        await rates.take(world.db, world.service.actor)


@pytest.mark.proves("D.625")
async def test_rows_of_budgets_that_are_full_again_are_deleted(
    world: World, other: World, clock: Clock, admin: asyncpg.Connection
) -> None:
    rates = RequestRates(PER_SECOND, Watch())
    await rates.take(world.db, world.service.actor)
    await clock.advance(keys.BUDGET_LIFETIME)
    await rates.take(world.db, other.service.actor)
    (chore,) = [chore for chore in CHORES if chore.name == "full request budgets"]
    await clock.advance(timedelta(seconds=1))
    await chore.do(world.db)
    assert await admin.fetch("select org_id from request_budget") == [(other.org_id,)]
