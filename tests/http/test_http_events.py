"""Events over HTTP: replayed exactly, live without a gap, ended well."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from uuid import UUID

import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane.db.database import Database
from cortex_plane.db.pool import EVENTS, listen_for_hints
from cortex_plane.http import streams
from cortex_plane.http.streams import stream
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.main.api_process import GRACE_SECONDS
from cortex_plane.sessions.model.events import Event
from cortex_plane.sessions.verbs import event_reader, events
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.model.orgs import MemberChange, Role
from cortex_plane.tenancy.verbs import keys, orgs
from tests.conftest import Urls
from tests.fixtures.people import World
from tests.fixtures.servers import MASTER_KEY, VAULT
from tests.fixtures.streams import Plane, append, reading, serving

UNKNOWN = "01936f3a-0000-7000-8000-000000000000"


async def a_session(world: World) -> UUID:
    return (await world.say("Hello")).session_id


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if happened():
                return
            await asyncio.sleep(0.01)


async def a_job(world: World) -> tuple[UUID, UUID]:
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    return job.id, job.session_id


# Replay ------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.60", "D.61")
async def test_a_stream_replays_what_was_missed_and_goes_live(world: World) -> None:
    session = await a_session(world)
    async with serving(world.db) as plane:
        path = f"/v1/sessions/{session}/events"
        async with reading(plane, world.admin, path) as reader:
            answer = reader.answer
            assert answer.headers["Content-Type"].startswith("text/event-stream")
            assert (answer.headers["Cache-Control"], answer.headers["X-Accel-Buffering"]) == ("no-store", "no")
            first = await reader.next()
            assert first is not None
            assert (first.id, first.event) == (1, "message")
            assert first.data["data"] == {"seq": 1, "role": "user", "text": "Hello"}
            assert set(first.data) == {"seq", "type", "job_id", "data", "created_at"}
            assert (await reader.ids(1)) == [2]
            await append(world, session, 3)
            assert await reader.ids(3) == [3, 4, 5]
        async with reading(plane, world.admin, path, 3) as reader:
            assert await reader.ids(2) == [4, 5]
        async with reading(plane, world.admin, path, after=4) as reader:
            assert await reader.ids(1) == [5]
        # A browser that connects again repeats its address: what it saw last goes before that.
        async with reading(plane, world.admin, path, 4, after=1) as reader:
            assert await reader.ids(1) == [5]


async def test_a_long_history_is_replayed_page_by_page(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE", 7)
    session = await a_session(world)
    for _ in range(4):
        await append(world, session, 10)
    async with serving(world.db) as plane, reading(plane, world.admin, f"/v1/sessions/{session}/events") as reader:
        assert await reader.ids(42) == list(range(1, 43))
        await append(world, session)
        assert await reader.ids(1) == [43]


@pytest.mark.proves("D.61")
async def test_readers_that_come_and_go_while_events_are_appended_miss_nothing(world: World) -> None:
    """Three writers race on one session; each reader leaves now and then and resumes from its last number."""
    session = await a_session(world)
    total = 2 + 3 * 60 * 2
    chance = random.Random(7)

    async def write() -> None:
        for _ in range(60):
            await append(world, session, 2)

    async def read(plane: Plane, patience: list[int]) -> list[int]:
        seen: list[int] = []
        while len(seen) < total:
            after = seen[-1] if seen else None
            async with reading(plane, world.admin, f"/v1/sessions/{session}/events", after) as reader:
                for _ in range(min(patience.pop(), total - len(seen))):
                    told = await reader.next()
                    assert told is not None
                    assert told.id is not None
                    seen.append(told.id)
        return seen

    async with serving(world.db, EventFeed(world.db, poll_seconds=0.01)) as plane:
        readers = [read(plane, [chance.randint(1, 60) for _ in range(500)]) for _ in range(6)]
        seen = (await asyncio.gather(*readers, *(write() for _ in range(3))))[:6]
    for each in seen:
        assert each == list(range(1, total + 1))


async def test_events_come_as_pages_for_programs(http: httpx.AsyncClient, world: World) -> None:
    session = await a_session(world)
    await append(world, session, 4)
    path, headers = f"/v1/sessions/{session}/events", world.admin.headers
    page = (await http.get(path, params={"limit": 4}, headers=headers)).json()
    assert [item["seq"] for item in page["items"]] == [1, 2, 3, 4]
    rest = (await http.get(path, params={"cursor": page["next_cursor"]}, headers=headers)).json()
    assert ([item["seq"] for item in rest["items"]], rest["next_cursor"]) == ([5, 6], None)
    after = (await http.get(path, params={"after": 5}, headers=headers)).json()
    assert [item["seq"] for item in after["items"]] == [6]


# Jobs --------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.62")
async def test_the_stream_of_a_job_ends_with_the_job(world: World) -> None:
    job, session = await a_job(world)
    await append(world, session)  # of the session, not of the job
    async with serving(world.db) as plane:
        path = f"/v1/jobs/{job}/events"
        async with reading(plane, world.admin, path) as reader:
            first = await reader.next()
            assert first is not None
            assert first.data["data"] == {"status": "PENDING"}
            await steering.cancel(world.db, world.admin.actor, job, Cancellation(reason="enough"))
            told = await reader.rest()
            assert [each.event for each in told] == ["status", "end"]
            assert told[0].data["data"]["status"] == "CANCELLED"
            assert (told[1].data, told[1].id) == ({"reason": "job_ended", "status": "CANCELLED"}, None)
        # Whoever comes later gets the same, and whoever has seen everything is told at once that it is over.
        async with reading(plane, world.admin, path) as reader:
            assert [each.event for each in await reader.rest()] == ["status", "status", "end"]
        for after in (told[0].id, 1_000_000):
            async with reading(plane, world.admin, path, after) as reader:
                assert [each.event for each in await reader.rest()] == ["end"]


async def test_a_job_can_be_followed_into_its_session(world: World) -> None:
    job, session = await a_job(world)
    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
    async with (
        serving(world.db) as plane,
        reading(plane, world.admin, f"/v1/jobs/{job}/events", follow="session") as reader,
    ):
        seen = await reader.ids(2)
        await append(world, session)
        assert await reader.ids(1) == [int(seen[-1] or 0) + 1]


# Bad input ---------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.63")
async def test_what_makes_no_sense_is_refused(http: httpx.AsyncClient, world: World) -> None:
    job, session = await a_job(world)
    for path in (f"/v1/sessions/{session}/events", f"/v1/jobs/{job}/events"):
        for accept in ("text/event-stream", "application/json"):
            headers = {**world.admin.headers, "Accept": accept}
            for last in ("abc", "-1", "1.5", "99999999999999999999"):
                answer = await http.get(path, headers=headers | {"Last-Event-ID": last})
                assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), last
                assert answer.json()["errors"][0]["field"].lower() == "header.last-event-id"
            for query in ({"after": "-1"}, {"after": "x"}, {"strange": "1"}, {"limit": "0"}):
                answer = await http.get(path, headers=headers, params=query)
                assert answer.status_code == 422, query
    refused = await http.get(f"/v1/jobs/{job}/events", headers=world.admin.headers, params={"follow": "everything"})
    assert refused.status_code == 422


@pytest.mark.proves("D.63")
async def test_a_stream_is_for_those_who_see_the_session(http: httpx.AsyncClient, world: World, other: World) -> None:
    job, session = await a_job(world)
    stranger = await world.person(Role.MEMBER)
    for path, code in ((f"sessions/{session}", "session_not_found"), (f"jobs/{job}", "job_not_found")):
        for person in (other.admin, stranger):
            for accept in ("text/event-stream", "application/json"):
                answer = await http.get(f"/v1/{path}/events", headers={**person.headers, "Accept": accept})
                assert (answer.status_code, answer.json()["code"]) == (404, code)
        unknown = f"/v1/{path.split('/')[0]}/{UNKNOWN}/events"
        answer = await http.get(unknown, headers={**world.admin.headers, "Accept": "text/event-stream"})
        assert (answer.status_code, answer.json()["code"]) == (404, code)
    assert (await http.get(f"/v1/jobs/{job}/events")).status_code == 401


async def test_a_number_beyond_the_end_waits(world: World) -> None:
    session = await a_session(world)
    async with serving(world.db) as plane, reading(plane, world.admin, f"/v1/sessions/{session}/events", 5) as reader:
        await append(world, session, 5)  # 3 to 7
        assert await reader.ids(2) == [6, 7]


# The life of a stream ----------------------------------------------------------------------------------------


@pytest.mark.proves("D.64")
async def test_a_quiet_stream_is_kept_alive(world: World) -> None:
    session = await a_session(world)
    feed = EventFeed(world.db)
    read = partial(events.of_session, world.db, world.admin.actor, session)
    asked = 0

    async def allowed() -> None:
        nonlocal asked
        asked += 1

    parts = stream(feed, read, await read(2), 2, allowed, heartbeat=0.02)
    assert [await anext(parts) for _ in range(4)] == [b"retry: 1000\n\n", *[b": ping\n\n"] * 3]
    assert asked == 3
    await parts.aclose()
    assert feed._sessions == {}


@pytest.mark.proves("D.64")
async def test_a_stream_ends_soon_after_its_key_is_revoked(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(event_reader, "HEARTBEAT_SECONDS", 0.05)
    session = await a_session(world)
    person = await world.person(Role.OPERATOR)
    async with serving(world.db) as plane, reading(plane, person, f"/v1/sessions/{session}/events") as reader:
        assert await reader.ids(2) == [1, 2]
        await keys.revoke_key(world.db, world.admin.actor, person.actor.key_id)
        told = await reader.next()
        assert told is not None
        assert (told.event, told.data) == ("end", {"reason": "access_ended"})
        assert await reader.next() is None


@pytest.mark.proves("D.64")
async def test_a_stream_ends_soon_after_its_reader_may_not_see_the_session_any_more(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_reader, "HEARTBEAT_SECONDS", 0.05)
    job, _ = await a_job(world)
    person = await world.person(Role.OPERATOR)
    async with serving(world.db) as plane, reading(plane, person, f"/v1/jobs/{job}/events") as reader:
        assert await reader.ids(1) == [1]
        account = person.actor.user_account_id
        assert account is not None
        await orgs.update_member(world.db, world.admin.actor, account, MemberChange(roles=[Role.MEMBER]), None)
        (told,) = await reader.rest()
        assert (told.event, told.data) == ("end", {"reason": "access_ended"})


@pytest.mark.proves("D.65")
async def test_a_reader_that_is_too_slow_is_dropped_and_resumes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "QUEUE", 20)
    session = await a_session(world)
    feed = EventFeed(world.db, poll_seconds=0.01)
    read = partial(events.of_session, world.db, world.admin.actor, session)

    async def allowed() -> None:
        pass

    parts = stream(feed, read, await read(0), 0, allowed, heartbeat=0.02)
    while await anext(parts) != b": ping\n\n":
        pass  # with the first ping it is live
    await append(world, session, 5)
    while (seen := await anext(parts)) == b": ping\n\n":
        pass  # and then it does not read for a while
    for _ in range(4):
        await append(world, session, 20)
    (watched,) = feed._sessions[world.org_id].values()
    await until(lambda: watched.readers[0].overflowed)
    async for part in parts:
        seen += part
    ids = ids_in(seen)
    assert ids == [3, 4, 5, 6, 7], "what it had taken, and nothing of what it was too slow for"
    assert seen.endswith(streams.control("dropped", after=7, reason="slow_reader"))
    assert feed._sessions == {}
    again = stream(feed, read, await read(7), 7, allowed)
    rest = b""
    while len(ids_in(rest)) < 80:
        rest += await anext(again)
    assert ids_in(rest) == list(range(8, 88))
    await again.aclose()


def ids_in(parts: bytes) -> list[int]:
    return [int(line[4:]) for line in parts.split(b"\n") if line.startswith(b"id: ")]


@pytest.mark.proves("D.66")
async def test_without_notifications_an_event_is_at_most_a_second_late(world: World) -> None:
    session = await a_session(world)
    async with (
        serving(world.db, EventFeed(world.db)) as plane,
        reading(plane, world.admin, f"/v1/sessions/{session}/events") as reader,
    ):
        assert await reader.ids(2) == [1, 2]
        for number in (3, 4, 5):
            await append(world, session)
            started = time.monotonic()
            assert await reader.ids(1) == [number]
            assert time.monotonic() - started < GRACE_SECONDS


@pytest.mark.proves("D.66")
async def test_a_hint_wakes_readers_of_another_process(world: World, urls: Urls) -> None:
    """The feed would look once in ten minutes: only a hint can make it."""
    session = await a_session(world)
    feed = EventFeed(world.db, poll_seconds=600)
    writer = await Database.open(urls.app, vault=VAULT)
    elsewhere = World(writer, world.org_id, world.admin, world.service, world.agent, world.connection)
    async with listen_for_hints(urls.app, feed.heard, EVENTS):
        await asyncio.wait_for(feed.heard.wait(), 10)  # it listens
        async with (
            serving(world.db, feed) as plane,
            reading(plane, world.admin, f"/v1/sessions/{session}/events") as reader,
        ):
            assert await reader.ids(2) == [1, 2]
            await append(elsewhere, session)
            assert await reader.ids(1) == [3]
            await elsewhere.say("Hello again")
            assert await reader.ids(1) == [4]
    await writer.close()


@pytest.mark.proves("D.67")
async def test_many_streams_cost_few_queries(world: World) -> None:
    """Two hundred readers of twenty sessions: each look is one query for all of them."""
    sessions = [(await world.say(f"Hello {n}", f"u-{n}")).session_id for n in range(20)]
    feed = EventFeed(world.db, poll_seconds=0.05)
    with ExitStack() as stack:
        watches = [feed.watch(world.org_id, session, 2) for session in sessions for _ in range(10)]
        readers = [stack.enter_context(watch) for watch in watches]
        for session in sessions:
            await append(world, session, 2)
        for reader in readers:
            got: list[Event] = []
            while len(got) < 2:
                got += await reader.take(10)
            assert [event.seq for event in got] == [3, 4]
        assert feed.looks < 60
    assert feed._sessions == {}


async def test_nobody_hears_of_a_reader_that_leaves(world: World, caplog: pytest.LogCaptureFixture) -> None:
    session = await a_session(world)
    with caplog.at_level(logging.INFO), capture_logs() as logs:
        async with serving(world.db) as plane:
            async with reading(plane, world.admin, f"/v1/sessions/{session}/events") as reader:
                assert await reader.ids(2) == [1, 2]
                assert plane.feed._sessions != {}
            for _ in range(3):
                await append(world, session)
            await until(lambda: not plane.feed._sessions)
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    assert [line for line in logs if line["log_level"] in ("warning", "error")] == []
    assert [line["event"] for line in logs if "events" in line.get("route", "")] == ["request", "stream ended"]


@pytest.mark.proves("D.68")
async def test_a_stream_is_measured_when_it_is_answered(world: World) -> None:
    session = await a_session(world)
    async with serving(world.db) as plane, reading(plane, world.admin, f"/v1/sessions/{session}/events") as reader:
        await reader.ids(2)
        measured = plane.metrics.exposition().decode().splitlines()
        (counted,) = [
            line for line in measured if line.startswith("http_request_duration_seconds_count") and "events" in line
        ]  # fmt: skip
        assert 'route="/v1/sessions/{session_id}/events"' in counted
        assert counted.endswith(" 1.0")


@pytest.mark.proves("D.65")
async def test_a_server_with_open_streams_stops_at_once(world: World, urls: Urls) -> None:
    """A process of its own, fifty readers, SIGTERM: all are told where to go on, and nothing is left hanging."""
    session = await a_session(world)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "cortex_plane", "api",
        env=environment | {
            "DATABASE_URL": urls.app, "CORTEX_PORT": "0", "CORTEX_LOG_LEVEL": "warning", "CORTEX_MASTER_KEY": MASTER_KEY,
        },
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert server.stdout is not None
    try:
        said = (await server.stdout.readline()).decode()
        assert said.startswith("serving on http"), said
        plane = Plane(said.split()[-1], EventFeed(world.db), None)  # type: ignore[arg-type]
        async with AsyncExitStack() as stack:
            readers = [
                await stack.enter_async_context(reading(plane, world.admin, f"/v1/sessions/{session}/events"))
                for _ in range(50)
            ]
            for reader in readers:
                assert await reader.ids(2) == [1, 2]
            started = time.monotonic()
            server.send_signal(signal.SIGTERM)
            for reader in readers:
                (told,) = await reader.rest()
                assert (told.event, told.data) == ("dropped", {"after": 2, "reason": "shutdown"})
            assert time.monotonic() - started < GRACE_SECONDS
            # One that waited for its streams would take all of the grace time.
            assert await asyncio.wait_for(server.wait(), GRACE_SECONDS - 1) == 0
        assert await server.stdout.read() == b"", "nothing worth a warning happened"
    finally:
        if server.returncode is None:
            server.kill()
            await server.wait()
