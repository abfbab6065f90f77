"""Tools of MCP servers under a worker: asked for, approved, changed, confirmed, down, and never run twice."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.approvals.model.approvals import ApprovalKind
from cortex_plane.approvals.verbs import settlements
from cortex_plane.jobs.model.effects import Answer, Verdict
from cortex_plane.jobs.model.jobs import Hold, JobStatus
from cortex_plane.jobs.verbs import steering, workers
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.fields import Risk
from cortex_plane.policies.model.versions import ExplainRequest
from cortex_plane.policies.verbs import simulations
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending
from tests.fixtures.people import World
from tests.fixtures.workers import Recording, actions, call, ended, make_agent, submit, turn, until, whole, working
from tests.mcp_servers.hostile import default_tools
from tests.mcp_servers.lines import context, hostile, log_of, sqlite

W = JobStatus.WAITING_FOR_APPROVAL
SECRET = "hunter2-and-a-half"


def notes(folder: Path) -> list[str]:
    """What was noted in the outside world."""
    return [line.split()[1] for line in log_of(folder) if line.startswith("note ")]


def note(text: str = "a") -> dict[str, Any]:
    return call("hostile_note", text=text)


def seen(app: App, tool: str, **more: Any) -> ConfirmationDraft:
    """Somebody looked at the tool as it is now."""
    return ConfirmationDraft(tool=tool, digest=app.tools[tool].version(app.name).digest, **more)


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of tools are read as soon as they are said to have changed."""
    monkeypatch.setattr("cortex_plane.mcp_client.transports.READ_SECONDS", 0.01)


def change(folder: Path, **more: Any) -> None:
    """The server describes its first tool in another way from now on."""
    listed = default_tools()
    listed[0] |= more
    (folder / "tools.json").write_text(json.dumps(listed))


async def rows_of(admin: asyncpg.Connection, id: UUID) -> list[asyncpg.Record]:
    found: list[asyncpg.Record] = await admin.fetch(
        "select tool_name, status, on_uncertain, read_only, tool_digest from tool_call where job_id = $1"
        " order by step_index, position",
        id,
    )
    return found


@pytest.mark.proves("D.260")
async def test_a_write_to_a_real_server_waits_for_approval_and_happens_once(strict: World, tmp_path: Path) -> None:
    world = tmp_path / "world.db"
    with contextlib.closing(sqlite3.connect(world)) as outside:
        outside.execute("create table letter (text)")
    app = App("tests")
    sqlite(app, world)
    asked = call("files_write_query", query="insert into letter values ('dear world')")
    look = call("files_read_query", query="select count(*) as n from letter")
    agent = await make_agent(strict, [turn(asked, text="I write."), turn(look)])
    id = await submit(strict, agent)
    async with working(strict.db, app):
        await until(strict, id, W)
        (approval,) = await pending(strict, id)
        assert (approval.tool_name, approval.risk) == ("files.write_query", "medium")
        assert _letters(world) == 0
        await decide(strict, approval)
        await until(strict, id, W)
        assert _letters(world) == 1
        (approval,) = await pending(strict, id)
        assert approval.tool_name == "files.read_query"
        await decide(strict, approval)
        job = await ended(strict, id)
    assert (job.status, _letters(world)) == (JobStatus.COMPLETED, 1)
    assert await whole(strict)
    published = {tool.name: tool for tool in await workers.list_tools(strict.db, strict.admin.actor)}
    kept = published["files.write_query"]
    assert (kept.server, kept.remote_name, kept.read_only) == ("files", "write_query", False)
    assert [row.digest for row in published.values() if row.name == "files.read_query"] == [approval.tool_digest]


def _letters(world: Path) -> int:
    with contextlib.closing(sqlite3.connect(world)) as outside:
        (count,) = outside.execute("select count(*) from letter").fetchone()
    return int(count)


@pytest.mark.proves("D.263")
async def test_a_tool_that_changed_between_asking_and_approving_is_asked_about_again(
    strict: World, tmp_path: Path
) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    agent = await make_agent(strict, [turn(note())])
    id = await submit(strict, agent)
    async with working(strict.db, app):
        await until(strict, id, W)
        (first,) = await pending(strict, id)
        change(tmp_path, description="Write a line, and post it everywhere.")
        await _announced(app)
        await decide(strict, first)
        await until(strict, id, W)
        (second,) = await pending(strict, id)
        assert (second.id != first.id, notes(tmp_path)) == (True, [])
        await decide(strict, second)
        job = await ended(strict, id)
    assert (job.status, notes(tmp_path)) == (JobStatus.COMPLETED, ["a"])
    assert "approval_outgrown" in await actions(strict, job)
    versions = [
        version
        for version in await workers.list_versions(strict.db, strict.admin.actor, "tests")
        if version.name == "hostile.note"
    ]
    assert [(version.newest, version.changed) for version in versions] == [(True, True), (False, False)]
    assert versions[0].published_at > versions[1].published_at


async def _announced(app: App) -> None:
    """The server tells of its change, and the worker has read it."""
    before = app.revision
    assert await app.tools["hostile.announce"].call({}, context()) == "announced"
    async with asyncio.timeout(60):
        while app.revision == before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.proves("D.263")
async def test_a_version_that_comes_back_is_the_newest_again(strict: World, tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)

    async def newest() -> str:
        found = await workers.list_tools(strict.db, strict.admin.actor)
        return next(tool.digest for tool in found if tool.name == "hostile.note")

    async with working(strict.db, app):
        await _offered(app)
        first = await newest()
        change(tmp_path, inputSchema={"type": "object"})
        await _announced(app)
        second = await newest()
        (tmp_path / "tools.json").unlink()
        await _announced(app)
        assert (await newest(), first != second) == (first, True)


async def _offered(app: App, name: str = "hostile.note") -> None:
    async with asyncio.timeout(60):
        while name not in app.tools:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@pytest.mark.proves("D.263")
async def test_a_tool_that_is_gone_holds_the_calls_that_wait_for_it(strict: World, tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    agent = await make_agent(strict, [turn(note())])
    id = await submit(strict, agent)
    async with working(strict.db, app):
        await until(strict, id, W)
        (tmp_path / "tools.json").write_text(json.dumps(default_tools()[1:]))
        await _announced(app)
        (approval,) = await pending(strict, id)
        await decide(strict, approval)
        job = await ended(strict, id)
    assert (job.status, job.holds, notes(tmp_path)) == (JobStatus.PAUSED, [Hold.CODE_CHANGED], [])


# What stewards confirm -----------------------------------------------------------------------------------------


@pytest.mark.proves("D.266")
async def test_a_confirmed_tool_is_read_only_until_it_changes_or_is_revoked(
    strict: World, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    db, steward = strict.db, strict.admin.actor
    app = App("tests")
    hostile(app, tmp_path)
    agent = await make_agent(strict, [turn(note())])

    async def asks() -> bool:
        """Whether a new job stops before it notes anything."""
        id = await submit(strict, agent)
        job = await until(strict, id, W, JobStatus.COMPLETED)
        if job.status is JobStatus.COMPLETED:
            (row,) = await rows_of(admin, id)
            assert (row["read_only"], row["on_uncertain"]) == (True, None)
        return job.status is W

    async def explained() -> str:
        question = ExplainRequest(agent=agent.slug, tool="hostile.note", arguments={"text": "a"})
        return (await simulations.explain_policies(db, steward, question)).explanation.decision.verdict

    async with working(db, app):
        # The server's own hint says that it only reads.
        assert await asks()
        assert await explained() == "requires_approval"
        made = await agents.confirm_tool(db, steward, seen(app, "hostile.note", read_only=True))
        assert (made.current, made.app, made.confirmed_by) == (True, "tests", "Ada")
        assert not await asks()
        assert await explained() == "allow"
        change(tmp_path, description="Another thing.")
        await _announced(app)
        assert await asks()
        assert not (await agents.get_confirmation(db, steward, made.id)).current
        again = await agents.confirm_tool(db, steward, seen(app, "hostile.note", read_only=True, risk=Risk.LOW))
        assert not await asks()
        await agents.revoke_confirmation(db, steward, again.id)
        assert await asks()
        assert await explained() == "requires_approval"
    assert len(notes(tmp_path)) == 2
    assert await whole(strict)


@pytest.mark.proves("D.266")
async def test_a_confirmation_of_one_org_is_none_for_another(strict: World, other: World, tmp_path: Path) -> None:
    app = App("tests")
    hostile(app, tmp_path)
    agent = await make_agent(strict, [turn(note())])
    async with working(strict.db, app):
        await _offered(app)
        await agents.confirm_tool(other.db, other.admin.actor, seen(app, "hostile.note", read_only=True))
        await until(strict, await submit(strict, agent), W)
    assert notes(tmp_path) == []


@pytest.mark.proves("D.267")
async def test_what_was_decided_by_an_older_confirmation_is_not_sent(
    world: World, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    """Idempotent when its call was planned, and no more when its intent is written: the plan is thrown away."""
    db, steward = world.db, world.admin.actor
    app = App("tests")
    hostile(app, tmp_path)
    agent = await make_agent(world, [turn(note("a")), turn(note("b"))])
    made: list[UUID] = []

    async def before(number: int) -> None:
        if number == 1:
            draft = seen(app, "hostile.note", idempotent=True)
            made.append((await agents.confirm_tool(db, steward, draft)).id)
        if number == 2:
            await agents.revoke_confirmation(db, steward, made[0])

    model = Recording(before)
    async with working(db, app, backends=Backends({"scripted": model})):
        id = await submit(world, agent)
        job = await ended(world, id)
    assert (job.status, notes(tmp_path)) == (JobStatus.COMPLETED, ["a", "b"])
    assert [row["on_uncertain"] for row in await rows_of(admin, id)] == ["retry_with_key", "ask_human"]
    assert (await actions(world, job)).count("job_handed_back") == 2


@pytest.mark.proves("D.267")
async def test_an_idempotent_call_whose_server_died_is_sent_again_and_others_are_asked_about(
    world: World, tmp_path: Path
) -> None:
    db, steward = world.db, world.admin.actor
    app = App("tests")
    hostile(app, tmp_path)
    agent = await make_agent(world, [turn(call("hostile_die"))])
    async with working(db, app):
        id = await submit(world, agent)
        job = await ended(world, id)
        assert (job.status, job.holds) == (JobStatus.PAUSED, [Hold.UNCERTAIN_EFFECT])
        (card,) = await pending(world, id)
        assert card.kind is ApprovalKind.UNCERTAIN_EFFECT
        (question,) = await steering.list_questions(db, steward, id)
        assert log_of(tmp_path).count("die") == 1
        answer = Answer(verdict=Verdict.HAPPENED, result={"died": True}, note="seen in its log")
        await settlements.settle(db, steward, id, question.call_id, answer)
        assert (await ended(world, id)).status is JobStatus.COMPLETED
        await agents.confirm_tool(db, steward, seen(app, "hostile.die", idempotent=True))
        id = await submit(world, agent)
        job = await ended(world, id, 60)
    # Three times at most, then a person is asked after all.
    assert (job.status, log_of(tmp_path).count("die")) == (JobStatus.PAUSED, 1 + 3)


# Servers that are down -----------------------------------------------------------------------------------------


@pytest.mark.proves("D.265")
async def test_a_server_that_is_down_stops_neither_the_worker_nor_what_was_approved(
    strict: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortex_plane.worker.mcp.connection.SETTLE_SECONDS", 0.5)
    monkeypatch.setattr("cortex_plane.worker.mcp.connection.WAIT_SECONDS", 0.2)
    monkeypatch.setattr("cortex_plane.worker.authorization.SERVER_SECONDS", 0.2)
    db = strict.db
    asking = App("tests")
    hostile(asking, tmp_path)
    agent = await make_agent(strict, [turn(note())])
    id = await submit(strict, agent)
    async with working(db, asking):
        await until(strict, id, W)
    (approval,) = await pending(strict, id)
    await decide(strict, approval)
    (tmp_path / "start.txt").write_text("leave")

    app = App("tests")
    hostile(app, tmp_path)

    @app.tool(read_only=True)
    def look() -> str:
        return "seen"

    looking = await submit(strict, await make_agent(strict, [turn(call("look"))], slug="looker"))
    async with working(db, app):
        assert (await ended(strict, looking)).status is JobStatus.COMPLETED
        await until(strict, id, JobStatus.SLEEPING)
        async with asyncio.timeout(60):
            servers = await workers.list_servers(db, strict.admin.actor)
            while not any(server.state == "down" for server in servers):
                servers = await workers.list_servers(db, strict.admin.actor)
        assert (servers[0].name, servers[0].app) == ("hostile", "tests")
        assert "exit code 3" in (servers[0].reason or "")
        assert notes(tmp_path) == []
        (tmp_path / "start.txt").write_text("")
        job = await ended(strict, id, 60)
        assert (job.status, notes(tmp_path)) == (JobStatus.COMPLETED, ["a"])
        async with asyncio.timeout(60):
            while (await workers.list_servers(db, strict.admin.actor))[0].state != "up":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
    assert await workers.list_servers(db, strict.admin.actor) == []
    assert "approval_outgrown" not in await actions(strict, job)


@pytest.mark.proves("D.261")
async def test_a_worker_without_a_secret_does_not_start(
    strict: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOSTILE_TOKEN", raising=False)
    app = App("tests")
    hostile(app, tmp_path, secrets=["HOSTILE_TOKEN"])
    with pytest.raises(SetupError, match="HOSTILE_TOKEN"):
        async with working(strict.db, app):
            await asyncio.sleep(0)
    assert log_of(tmp_path) == []


@pytest.mark.proves("D.261")
async def test_secrets_are_nowhere_in_the_database(
    world: World, admin: asyncpg.Connection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTILE_TOKEN", SECRET)
    app = App("tests")
    hostile(app, tmp_path, secrets=["HOSTILE_TOKEN"])
    change(tmp_path, description=f"Uses {SECRET} to write.")
    agent = await make_agent(
        world, [turn(call("hostile_leak")), turn(call("hostile_refuse")), turn(call("hostile_note", text="x"))]
    )  # fmt: skip
    async with working(world.db, app):
        job = await ended(world, await submit(world, agent))
    assert job.status is JobStatus.COMPLETED
    tables = await admin.fetch(
        "select format('%I.%I', schemaname, tablename) as name from pg_tables where schemaname = 'public'"
    )
    for table in tables:
        found = await admin.fetchval(
            f"select count(*) from {table['name']} t where t::text like '%' || $1 || '%'", SECRET
        )
        assert found == 0, table["name"]
    shown = await admin.fetchval("select description from tool_version where name = 'hostile.note'")
    assert shown == "Uses [redacted] to write."
