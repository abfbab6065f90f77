"""What one reader of events can cost the plane: no more than it takes, and no longer than it may."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from functools import partial

import httpx
import pytest
from structlog.testing import capture_logs

from cortex_plane.http import streams as streaming
from cortex_plane.http.streams import stream
from cortex_plane.kernel.errors import NotFound, TooMany, Unauthenticated, Unavailable
from cortex_plane.sessions.verbs import event_reader, events
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import frame
from cortex_plane.tenancy.verbs.frame import OpenStreams
from tests.fixtures.people import World
from tests.fixtures.streams import append, reading, serving
from tests.http.test_http_events import a_session, ids_in, until


@pytest.mark.proves("D.65")
async def test_a_reader_that_takes_nothing_is_given_up(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than the sockets between them hold: the server waits for a reader that never reads."""
    monkeypatch.setattr(streaming, "STALL_SECONDS", 0.3)
    monkeypatch.setattr(event_reader, "HEARTBEAT_SECONDS", 0.1)
    session = await a_session(world)
    await append(world, session, 40, text="x" * 1_000_000)
    ended: list[bool] = []

    class Watched(streaming.EventStream):
        async def __call__(self, *asgi: object) -> None:
            await super().__call__(*asgi)  # type: ignore[arg-type]
            ended.append(True)

    monkeypatch.setattr("cortex_plane.http.routes.sessions.EventStream", Watched)
    with capture_logs() as logs:
        async with serving(world.db) as plane, reading(plane, world.admin, f"/v1/sessions/{session}/events"):
            await until(lambda: bool(ended))
            assert plane.feed._sessions == {}
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == ["stream given up"]


@pytest.mark.proves("D.65")
async def test_one_caller_has_so_many_streams_and_a_process_no_more_than_it_serves(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame, "MOST_OF_ONE", 2)
    monkeypatch.setattr(frame, "MOST_OF_ALL", 3)
    path = f"/v1/sessions/{await a_session(world)}/events"
    bob, eve = await world.person(Role.OPERATOR, name="Bob"), await world.person(Role.OPERATOR, name="Eve")
    async with serving(world.db) as plane, httpx.AsyncClient(base_url=plane.url, trust_env=False) as http:

        async def refused(headers: dict[str, str]) -> tuple[int, str]:
            answer = await http.get(path, headers={**headers, "Accept": "text/event-stream"})
            assert answer.json()["hint"]
            assert answer.headers["Retry-After"] == "1"
            return answer.status_code, answer.json()["code"]

        async with reading(plane, world.admin, path) as first, reading(plane, bob, path):
            async with reading(plane, world.admin, path):
                assert await refused(world.admin.headers) == (429, "too_many_streams")
                assert await refused(eve.headers) == (503, "streams_busy")
                assert (await http.get(path, headers=eve.headers | {"Accept": "application/json"})).is_success
            assert await first.ids(2) == [1, 2]
            async with asyncio.timeout(10):
                while True:  # what was closed counts no more
                    try:
                        async with reading(plane, world.admin, path) as again:
                            assert await again.ids(2) == [1, 2]
                        break
                    except AssertionError:
                        await asyncio.sleep(0.01)


def test_what_was_refused_counts_for_nothing(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(frame, "MOST_OF_ONE", 1)
    streams = OpenStreams()
    ended = streams.open(world.admin.actor.identity, world.admin.actor.org_id)
    for _ in range(3):
        with pytest.raises(TooMany):
            streams.open(world.admin.actor.identity, world.admin.actor.org_id)
    monkeypatch.setattr(frame, "MOST_OF_ALL", 1)
    with pytest.raises(Unavailable):
        streams.open(world.service.actor.identity, world.service.actor.org_id)
    ended()
    assert not streams.of
    streams.open(world.service.actor.identity, world.service.actor.org_id)()
    assert not streams.of


@pytest.mark.proves("D.64")
@pytest.mark.parametrize("page", [3, 1000])
async def test_access_that_ends_during_a_replay_ends_it(
    world: World, monkeypatch: pytest.MonkeyPatch, page: int
) -> None:
    """Far behind, and in the last look before it goes live: no page comes after the one that was due."""
    session = await a_session(world)
    await append(world, session, 28)
    read = partial(events.of_session, world.db, world.admin.actor, session, limit=page)

    async def revoked() -> None:
        raise Unauthenticated("This key was revoked.")

    parts: AsyncGenerator[bytes, None] = stream(EventFeed(world.db), read, await read(0), 0, revoked, heartbeat=1e-9)
    async with asyncio.timeout(20):
        told = b"".join([part async for part in parts])
    assert ids_in(told) == list(range(1, min(page, 30) + 1))
    assert told.endswith(streaming.control("end", reason="access_ended"))


async def test_an_event_is_encoded_once_for_all_its_readers(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    session = await a_session(world)
    page = await events.of_session(world.db, world.admin.actor, session, 0)
    first, second = page.events[:2]
    assert streaming.encoded(first) is streaming.encoded(first)
    assert streaming.encoded(first) != streaming.encoded(second)
    # A place in memory that another event has by now is not the same event.
    monkeypatch.setitem(streaming._ENCODED, id(first), (second, streaming.encoded(second)))
    assert streaming.encoded(first).startswith(b"id: %d\n" % first.seq)
    monkeypatch.setattr(streaming, "MOST_ENCODED", 1)
    streaming._ENCODED.clear()
    streaming.encoded(first)
    streaming.encoded(second)
    assert list(streaming._ENCODED) == [id(second)]


async def test_streams_that_are_opened_together_ask_for_their_access_one_after_the_other(world: World) -> None:
    session = await a_session(world)
    read = partial(events.of_session, world.db, world.admin.actor, session)
    first = await read(0)

    async def allowed() -> None:
        return

    feed = EventFeed(world.db)
    readers = [event_reader.EventReader(feed, read, allowed, 0, 15.0) for _ in range(200)]
    dues = [reader._due for reader in readers]
    assert max(dues) - min(dues) > 10
    assert first.events


async def test_whether_a_session_may_be_read_is_asked_without_reading_it(world: World, other: World) -> None:
    session = await a_session(world)
    page = await events.of_session(world.db, world.admin.actor, session, 7, 0)
    assert (page.events, page.more, page.latest) == ([], False, 7)
    with pytest.raises(NotFound):
        await events.of_session(other.db, other.admin.actor, session, 7, 0)
