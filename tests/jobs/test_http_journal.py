"""The journal of a code agent's job on every surface: HTTP, the client, the command line, the dashboard."""

from __future__ import annotations

import contextlib
from typing import Any
from uuid import UUID

import httpx
import pytest

from cortex_plane import Client
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.errors import NotFound, StepFailed
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.code.context import Context
from tests.fixtures.coded import coded, make_coded
from tests.fixtures.people import World
from tests.fixtures.stages import PATIENT
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import submit, until, working


def _broken() -> None:
    raise ValueError("<b>bold</b>")


async def _run(ctx: Context) -> str:
    await ctx.step("plan", lambda: {"ref": "main"}, repeatable=True)
    with contextlib.suppress(StepFailed):
        await ctx.step("break", _broken, repeatable=True)
    await ctx.gather(ctx.step("left", lambda: 1, repeatable=True), ctx.step("right", lambda: 2, repeatable=True))
    return "done"


KEYS = ["plan#0", "break#0", "gather#0", "gather#0/0/left#0", "gather#0/1/right#0"]


async def _done(world: World) -> UUID:
    id = await submit(world, await make_coded(world))
    async with working(world.db, coded(_run), settings=PATIENT):
        await until(world, id, JobStatus.COMPLETED)
    return id


@pytest.mark.proves("D.244")
async def test_the_journal_is_read_page_by_page(http: httpx.AsyncClient, world: World) -> None:
    id = await _done(world)
    path, headers = f"/v1/jobs/{id}/journal", world.admin.headers
    seen: list[dict[str, Any]] = []
    query: dict[str, Any] = {"limit": 2}
    while True:
        page = (await http.get(path, params=query, headers=headers)).json()
        seen += page["items"]
        if page["next_cursor"] is None:
            break
        query["cursor"] = page["next_cursor"]
    assert [entry["position"] for entry in seen] == [*range(5)]
    assert [entry["key"] for entry in seen[:3]] == KEYS[:3]
    assert {entry["key"] for entry in seen} == set(KEYS)
    assert (seen[0]["kind"], seen[0]["status"], seen[0]["result"]) == ("step", "done", {"ref": "main"})
    assert (seen[1]["status"], seen[1]["error"]["type"]) == ("failed", "StepFailed")
    above = (await http.get(path, params={"above": 3}, headers=headers)).json()
    assert [entry["position"] for entry in above["items"]] == [4]
    wrong = await http.get(path, params={"above": -2}, headers=headers)
    assert wrong.status_code == 422


@pytest.mark.proves("D.244")
async def test_only_whoever_sees_the_job_sees_its_journal(http: httpx.AsyncClient, world: World, other: World) -> None:
    id = await _done(world)
    member = await world.person(Role.MEMBER)
    for stranger in (member, other.admin):
        async with Client("http://plane", stranger.secret, transport=http._transport) as plane:
            with pytest.raises(NotFound):
                _ = [entry async for entry in plane.jobs.journal(id)]
    async with Client("http://plane", world.admin.secret, transport=http._transport) as plane:
        found = [entry async for entry in plane.jobs.journal(id)]
    assert {entry.key for entry in found} == set(KEYS)


@pytest.mark.proves("D.244")
async def test_the_page_of_a_job_shows_what_its_code_did(http: httpx.AsyncClient, world: World) -> None:
    id = await _done(world)
    page = await (await Visitor.log_in(http, world)).get(f"/jobs/{id}")
    assert page.status_code == 200
    for words in ("Operations of its code", "plan#0", "gather#0/1/right#0"):
        assert words in page.text
    assert "<b>bold</b>" not in page.text
