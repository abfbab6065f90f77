"""The client where it waits: for a job, for requests, and for programs without an event loop."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from cortex_plane import App, Client
from cortex_plane.client.sync_client import SyncClient
from cortex_plane.jobs.model.jobs import JobDraft, JobStatus
from cortex_plane.kernel.errors import CortexError, NotFound
from cortex_plane.tenancy.model.orgs import Role
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.people import World
from tests.fixtures.workers import FAST, call, make_agent, turn, working


@pytest.fixture
def server(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


def acting(acts: list[str]) -> App:
    app = App("tests")

    @app.tool(on_uncertain="retry_with_key")
    async def act(what: str) -> str:
        """Acts."""
        acts.append(what)
        return what

    return app


@pytest.mark.proves("D.937")
async def test_requests_are_watched_and_a_job_is_waited_for(server: Apart, strict: World) -> None:
    acts: list[str] = []
    script = [turn(call("act", what="a"), call("act", what="b")), turn(text="done")]
    agent = await make_agent(strict, script, tools=["act"])
    pat = await strict.person(Role.MEMBER)
    async with Client(server.url, strict.admin.secret) as plane, Client(server.url, pat.secret) as stranger:
        job = await plane.jobs.submit(JobDraft(agent=agent.slug))
        with pytest.raises(TimeoutError):
            await plane.jobs.wait(job.id, timeout=0.01)
        async with working(strict.db, acting(acts), settings=FAST):
            shown = []
            async with asyncio.timeout(60):
                async for card in plane.approvals.watch(job.id):
                    shown.append(card.id)
                    await plane.approvals.approve(card)
            assert len(shown) == len(set(shown)) == 2
            assert (await plane.jobs.wait(job.id, timeout=30)).status is JobStatus.COMPLETED
            assert sorted(acts) == ["a", "b"]
            # What is there first, then what comes: also over all jobs.
            second = await plane.jobs.submit(JobDraft(agent=agent.slug))
            async with asyncio.timeout(60):
                count = 0
                async for card in plane.approvals.watch(every=0.05):
                    assert card.job_id == second.id
                    await plane.approvals.approve(card)
                    count += 1
                    if count == 2:
                        break
            assert (await plane.jobs.wait(second.id, timeout=30)).status is JobStatus.COMPLETED
        with pytest.raises(NotFound):
            await stranger.jobs.wait(job.id)


@pytest.mark.proves("D.937")
def test_a_program_without_an_event_loop_has_one_thread_while_it_uses_it(
    server: Apart, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CORTEX_URL", "CORTEX_KEY", "CORTEX_ORG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CORTEX_HOME", str(tmp_path))
    (tmp_path / "access.json").write_text(f'{{"url": "{server.url}", "key": "cortex_key_wrong"}}')
    before = threading.active_count()
    with SyncClient() as plane:
        assert plane.client.url == server.url == Client().url
        assert threading.active_count() == before
        with pytest.raises(Exception, match="key"):
            plane.run(lambda client: client.me())
        with pytest.raises(Exception, match="key"):
            list(plane.each(lambda client: client.sessions.list()))
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


@pytest.mark.proves("D.937")
def test_closing_ends_whatever_is_under_way_and_nothing_starts_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def client() -> SyncClient:
        return SyncClient("http://plane", "key", transport=httpx.MockTransport(lambda _: httpx.Response(500)))

    async def numbers() -> AsyncIterator[int]:
        for number in range(9):
            yield number

    before = threading.active_count()
    plane, begun, errors = client(), threading.Event(), []

    async def wait_forever(_: Client) -> None:
        begun.set()
        await asyncio.Event().wait()

    def request() -> None:
        try:
            plane.run(wait_forever)
        except CortexError as error:
            errors.append(error.code)

    thread = threading.Thread(target=request)
    thread.start()
    assert begun.wait(10)
    plane.close()
    thread.join(10)
    assert errors == ["client_closed"]
    with pytest.raises(CortexError, match="closed"):
        plane.run(wait_forever)
    # An iterator that is left when the client is closed.
    with client() as other:
        items = other.each(lambda _: numbers())
        assert next(items) == 0
        assert other.run(lambda _: anext(numbers())) == 0
    del items
    gc.collect()
    plane.close()
    # Where the connections cannot be ended, the thread ends.
    broken = client()

    async def fail() -> None:
        raise OSError("broken")

    assert broken.run(lambda _: anext(numbers())) == 0
    monkeypatch.setattr(broken.client, "close", fail)
    with pytest.raises(OSError, match="broken"):
        broken.close()
    assert threading.active_count() == before
    # A forked child has no thread of its parent.
    with client() as parent:
        assert parent.run(lambda _: anext(numbers())) == 0
        child = os.fork()
        if child == 0:
            try:
                parent.run(lambda _: anext(numbers()))
            except CortexError as error:
                os._exit(3 if error.code == "client_forked" else 4)
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
