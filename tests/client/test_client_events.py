"""The client's streams: read to the end, and taken up again wherever they break."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane import Client, CortexError
from cortex_plane.client import transport as reconnecting
from cortex_plane.jobs.model.jobs import Cancellation, JobDraft
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import NotFound, TooMany, Unauthenticated, Unavailable
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import keys
from tests.fixtures.people import World
from tests.fixtures.streams import append, serving

UNKNOWN = UUID("01936f3a-0000-7000-8000-000000000000")


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients come back sooner than they would."""
    monkeypatch.setattr(reconnecting, "FIRST_PAUSE", 0.05)


def reading(events: Any, count: int) -> asyncio.Task[list[int]]:
    async def read() -> list[int]:
        return [(await anext(events)).seq for _ in range(count)]

    return asyncio.create_task(read())


@pytest.mark.proves("D.61")
async def test_a_job_is_followed_to_its_end(world: World) -> None:
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    async with serving(world.db) as plane, Client(plane.url, world.admin.secret) as client:
        events = client.jobs.events(job.id)
        first = await anext(events)
        assert (first.type, first.data, first.job_id) == ("status", {"status": "PENDING"}, job.id)
        await steering.cancel(world.db, world.admin.actor, job.id, Cancellation())
        assert [event.data["status"] async for event in events] == ["CANCELLED"]
        assert [event.seq async for event in client.jobs.events(job.id, after=first.seq)] == [2]


@pytest.mark.proves("D.61", "D.65")
async def test_a_stream_survives_a_restart_of_the_plane(world: World) -> None:
    """Nothing is lost and nothing comes twice, also of what happened while the plane was away."""
    session = (await world.say("Hello \u2028 there\x85")).session_id
    lost: list[CortexError] = []
    async with serving(world.db) as plane:
        port = int(plane.url.rpartition(":")[2])
        client = Client(plane.url, world.admin.secret)
        events = client.sessions.events(session, on_lost=lost.append)
        first = await anext(events)
        assert first.data["text"] == "Hello \u2028 there\x85"
        assert await reading(events, 1) == [2]
        await append(world, session, 2)
        assert await reading(events, 2) == [3, 4]
        rest = reading(events, 6)
        await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while True:
            if lost:
                break
            await asyncio.sleep(0.01)
    await append(world, session, 4)
    async with serving(world.db, port=port):
        async with asyncio.timeout(20):
            async with aclosing(events):  # type: ignore[type-var]
                await append(world, session, 2)
                assert await rest == [5, 6, 7, 8, 9, 10]
        await client.close()
    assert [error.code for error in lost] == ["unavailable"], "told once"


async def test_what_was_never_there_is_not_waited_for(world: World) -> None:
    async with serving(world.db) as plane:
        async with Client(plane.url, world.admin.secret) as client:
            with pytest.raises(NotFound):
                await anext(client.jobs.events(UNKNOWN))
        url = plane.url
    async with Client(url, world.admin.secret) as client:
        with pytest.raises(Unavailable):
            await anext(client.sessions.events(UNKNOWN))


@pytest.mark.parametrize("status", [429, 502, 503, 504])
async def test_a_proxy_that_does_not_reach_the_plane_is_waited_for(world: World, status: int) -> None:
    """Its answers are its own, and no problems of ours."""
    session = (await world.say()).session_id
    lost: list[CortexError] = []
    refusals = 0
    async with serving(world.db) as plane:
        way = httpx.AsyncHTTPTransport()

        class Proxy(httpx.AsyncBaseTransport):
            """Gets to the plane, then twice not, then again."""

            async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
                nonlocal refusals
                if request.headers["Last-Event-ID"] == "2" and refusals < 2:
                    refusals += 1
                    return httpx.Response(status, text="<html>Bad gateway</html>")
                answer = await way.handle_async_request(request)
                return answer if refusals else httpx.Response(200, headers=answer.headers, stream=Cut(answer))

        class Cut(httpx.AsyncByteStream):
            def __init__(self, answer: httpx.Response) -> None:
                self._answer = answer

            async def __aiter__(self) -> AsyncIterator[bytes]:
                async for piece in self._answer.aiter_raw():
                    yield piece
                    if b"id: 2" in piece:
                        return

            async def aclose(self) -> None:
                await self._answer.aclose()

        async with Client(plane.url, world.admin.secret, transport=Proxy()) as client:
            events = client.sessions.events(session, on_lost=lost.append)
            assert await reading(events, 2) == [1, 2]
            await append(world, session)
            assert await asyncio.wait_for(reading(events, 1), 20) == [3]
            await events.aclose()  # type: ignore[attr-defined]
        await way.aclose()
    assert refusals == 2
    assert [type(error) for error in lost] == [TooMany if status == 429 else Unavailable]


async def test_a_key_that_is_revoked_while_the_plane_is_away_is_an_error(world: World) -> None:
    session = (await world.say()).session_id
    person = await world.person(Role.OPERATOR)
    async with serving(world.db) as plane:
        port = int(plane.url.rpartition(":")[2])
        client = Client(plane.url, person.secret)
        events = client.sessions.events(session)
        assert await reading(events, 2) == [1, 2]
    await keys.revoke_key(world.db, world.admin.actor, person.actor.key_id)
    async with serving(world.db, port=port):
        with pytest.raises(Unauthenticated):
            await asyncio.wait_for(anext(events), 20)
        await client.close()
