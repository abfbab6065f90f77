"""What is remembered of a conversation, as people see it: REST, the client, the command line and the page of the job."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from uuid import UUID

import httpx
import orjson
import pytest
from structlog.testing import capture_logs

from cortex_plane import Client
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.cli.test_cli import Shell
from tests.cli.test_cli_jobs import _serving
from tests.fixtures.people import World
from tests.fixtures.visitors import Visitor
from tests.fixtures.windows import Listening, small_agent
from tests.fixtures.workers import until, working
from tests.worker.test_conversations import say

HOSTILE = "<script>alert(1)</script>\u202egnp"


async def remembered(world: World) -> tuple[UUID, UUID]:
    """A session whose window was made room in three times, and the job that did it last."""
    answers = (orjson.dumps({"summary": f"{HOSTILE} {n}", "facts": [f"{HOSTILE} {n}"]}).decode() for n in range(9))
    model = Listening(summary=lambda _: next(answers))
    await small_agent(world, [], context_turns=4)
    async with working(world.db, App("tests"), backends=Backends({"listening": model})):
        while len(model.of("summary")) < 3:
            delivery = await say(world, "And?", agent="small")
            await until(world, delivery.job_id, JobStatus.COMPLETED)
    return delivery.session_id, delivery.job_id


@pytest.mark.proves("D.237")
async def test_the_newest_memory_and_how_it_came_about(world: World, other: World, http: httpx.AsyncClient) -> None:
    session_id, job_id = await remembered(world)
    path = f"/v1/sessions/{session_id}/memory"
    page = (await http.get(path, params={"limit": "2"}, headers=world.admin.headers)).json()
    newest, before = page["items"]
    assert (newest["number"], before["number"]) == (3, 2)
    assert newest["message_seq"] > before["message_seq"]
    assert (newest["summary"], newest["facts"]) == (f"{HOSTILE} 2", [f"{HOSTILE} 2"])
    assert newest["job_id"] == str(job_id)
    rest = await http.get(path, params={"limit": "2", "cursor": page["next_cursor"]}, headers=world.admin.headers)
    assert [each["number"] for each in rest.json()["items"]] == [1]
    assert rest.json()["next_cursor"] is None
    # Nobody else's: neither another org's, nor that of somebody who sees their own sessions alone.
    stranger = await world.person(Role.MEMBER)
    for person in (other.admin, stranger):
        answer = await http.get(path, headers=person.headers)
        assert (answer.status_code, answer.json()["code"]) == (404, "session_not_found")


@pytest.mark.proves("D.237")
async def test_the_client_and_the_command_line_show_it(world: World, tmp_path: Path) -> None:
    session_id, _ = await remembered(world)
    untouched = (await world.say()).session_id
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CORTEX_", "DATABASE_"))}
    with capture_logs():
        async with _serving(world.db) as url:
            async with Client(url, world.admin.secret) as plane:
                numbers = [memory.number async for memory in plane.sessions.memory(session_id)]
            access = {"CORTEX_URL": url, "CORTEX_KEY": world.admin.secret, "COLUMNS": "300"}
            await asyncio.to_thread(_use, Shell(tmp_path, kept | access), str(session_id), str(untouched))
    assert numbers == [3, 2, 1]


def _use(shell: Shell, session_id: str, untouched: str) -> None:
    assert shell.one("session", "memory", session_id)["number"] == 3
    assert [each["number"] for each in shell.many("session", "memory", session_id, "--history")] == [3, 2, 1]
    shown = shell.run("session", "memory", session_id).stdout
    assert "<script>" in shown
    assert "\u202e" not in shown
    assert "nothing yet" in shell.run("session", "memory", untouched).stdout


@pytest.mark.proves("D.237")
async def test_the_page_of_the_job_shows_it_as_data(world: World, http: httpx.AsyncClient) -> None:
    _, job_id = await remembered(world)
    visitor = await Visitor.log_in(http, world)
    page = (await visitor.get(f"/jobs/{job_id}")).text
    memory = page.partition('id="memory"')[2].partition("</section>")[0]
    assert "written by a model" in memory
    assert memory.count("&lt;script&gt;alert(1)&lt;/script&gt;") == 2
    assert "<script>" not in memory
    assert "\u202e" not in memory


async def test_a_job_that_forgot_nothing_has_no_memory_to_show(world: World, http: httpx.AsyncClient) -> None:
    delivery = await world.say()
    visitor = await Visitor.log_in(http, world)
    page = await visitor.get(f"/jobs/{delivery.job_id}")
    assert page.status_code == 200
    assert 'id="memory"' not in page.text


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("context_tokens", 999), ("context_tokens", "5000"), ("context_tokens", 100_000_001), ("context_turns", 3),
        ("context_turns", 4.5), ("context_turns", 100_001), ("context_tokens", True),
    ],
)  # fmt: skip
async def test_a_window_that_is_none_is_refused(
    world: World, http: httpx.AsyncClient, field: str, value: object
) -> None:
    draft = {
        "name": "A", "slug": "windowless", "role": "R", "team": "main",
        "model_config": {"model": "scripted", field: value},
    }  # fmt: skip
    answer = await http.post("/v1/agents", json=draft, headers=world.admin.headers)
    assert answer.status_code == 422
    assert any(field in error["field"] for error in answer.json()["errors"])
    assert (await http.get("/v1/agents/windowless", headers=world.admin.headers)).status_code == 404
