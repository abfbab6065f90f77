"""MCP servers of the apps of a remote worker: they run beside it, and their tools are those of any MCP server to the plane."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from cortex_plane.agents import verbs as agents
from cortex_plane.agents.model.tools import ConfirmationDraft
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.remote_work import Failed, FailureKind, Invoke, InvokeTarget, LinkClosed, ServerCall
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.errors import SetupError
from cortex_plane.worker.remote import host as host_module
from cortex_plane.worker.remote.functions import AppFunctions
from cortex_plane.worker.remote.host import HostParts, RemoteWorkers
from cortex_plane.worker.remote.servers import AppServers
from cortex_plane.worker.tools.app import App
from tests.fixtures.approvals import decide, pending
from tests.fixtures.people import World
from tests.fixtures.workers import KEY, actions, call, ended, make_agent, steps_of, submit, turn, until, whole
from tests.mcp_servers.lines import hostile, log_of
from tests.worker.test_mcp_tools import change, notes
from tests.worker.test_remote_workers import BRISK, hello, next_of, raw_link, remote_worker, worker_key

W = JobStatus.WAITING_FOR_APPROVAL
SECRET = "hunter2-and-a-half"


@pytest.fixture(autouse=True)
def prompt(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of tools are read as soon as they are said to have changed."""
    monkeypatch.setattr("cortex_plane.mcp_client.transports.READ_SECONDS", 0.01)


def served(folder: Path, **more: Any) -> App:
    app = App("tests")
    hostile(app, folder, **more)
    return app


def note(text: str = "a") -> dict[str, Any]:
    return call("hostile_note", text=text)


@pytest.mark.proves("D.1115")
async def test_a_server_beside_a_remote_worker_offers_its_tools_through_the_plane(
    strict: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOSTILE_TOKEN", SECRET)
    app = served(tmp_path, secrets=["HOSTILE_TOKEN"])

    @app.tool(read_only=True)
    def look() -> str:
        return "seen"

    agent = await make_agent(strict, [turn(note(), call("look")), turn(call("hostile_leak"))])
    id = await submit(strict, agent)
    async with remote_worker(strict, app) as remote:
        await until(strict, id, W)
        (approval,) = await pending(strict, id)
        assert (approval.tool_name, notes(tmp_path)) == ("hostile.note", [])
        await decide(strict, approval)
        await until(strict, id, W)
        (leak,) = await pending(strict, id)
        await decide(strict, leak)
        job = await ended(strict, id)
        assert (job.status, notes(tmp_path)) == (JobStatus.COMPLETED, ["a"])
        # Published as a worker beside the database publishes it.
        published = {tool.name: tool for tool in await workers.list_tools(strict.db, strict.admin.actor)}
        kept = app.tools["hostile.note"].version("tests")
        assert published["hostile.note"] == kept
        assert approval.tool_digest == kept.digest
        (server,) = await workers.list_servers(strict.db, strict.admin.actor)
        assert (server.app, server.name, server.state, server.tools) == ("tests", "hostile", "up", 18)
        sent = next(each for each in remote.invokes() if each["name"] == "hostile.note")
        assert sent["context"] is None, "its server sees arguments and a key alone"
        (first, _) = (await steps_of(strict, id))[0].calls
        assert sent["server_call"]["key"] == str(first.id)
        assert str(first.id) in (tmp_path / "log.txt").read_text(), "and the server gets that key"
        told = b"".join(each for end in remote.worker_ends for each in end.sent)
        assert SECRET.encode() not in told, "secrets stay beside the worker"
    assert await workers.list_servers(strict.db, strict.admin.actor) == []
    assert await whole(strict)


@pytest.mark.proves("D.1116")
async def test_a_tool_that_its_server_changes_is_published_anew_and_asked_about_again(
    strict: World, tmp_path: Path
) -> None:
    app = served(tmp_path)
    agent = await make_agent(strict, [turn(note())])
    id = await submit(strict, agent)
    async with remote_worker(strict, app) as remote:
        await until(strict, id, W)
        (approval,) = await pending(strict, id)
        change(tmp_path, description="Writes it elsewhere.")
        announcing = await make_agent(strict, [turn(call("hostile_announce"))], slug="announcer")
        other = await submit(strict, announcing)
        await until(strict, other, W)
        (asked,) = await pending(strict, other)
        await decide(strict, asked)
        assert (await ended(strict, other)).status is JobStatus.COMPLETED
        async with asyncio.timeout(30):
            while not any(b'"kind":"server"' in each for each in remote.worker_ends[0].sent):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            while (await _digest(strict)) == approval.tool_digest:  # noqa: ASYNC110 -- the plane publishes it
                await asyncio.sleep(0.01)
        await decide(strict, approval)
        await until(strict, id, W)
        (again,) = await pending(strict, id)
        assert (again.tool_digest, notes(tmp_path)) == (app.tools["hostile.note"].version("tests").digest, [])
        await decide(strict, again)
        job = await ended(strict, id)
    assert (job.status, notes(tmp_path)) == (JobStatus.COMPLETED, ["a"])
    assert "approval_outgrown" in await actions(strict, job)


async def _digest(world: World) -> str:
    tools = await workers.list_tools(world.db, world.admin.actor)
    return next(tool.digest for tool in tools if tool.name == "hostile.note")


@pytest.mark.proves("D.1116")
async def test_the_worker_calls_no_other_version_than_the_one_that_was_judged(tmp_path: Path) -> None:
    app = served(tmp_path)
    servers, functions = AppServers([app]), AppFunctions([app])
    async with servers.running():
        tool = app.tools["hostile.note"]
        for digest, failure in ((tool.version("tests").digest, None), ("0" * 64, FailureKind.REFUSED)):
            answer = await functions.call(_invoke(tool.name, {"text": failure or "sent"}, digest))
            assert getattr(answer, "failure", None) == failure
        # What a steward confirmed elsewhere counts: a failure of what only reads leaves no doubt.
        tool = app.tools["hostile.refuse"]
        for read_only, words in ((True, "Correct the call"), (False, "it may have acted in part")):
            answer = await functions.call(_invoke(tool.name, {}, tool.version("tests").digest, read_only=read_only))
            assert isinstance(answer, Failed)
            assert words in f"{answer.message} {answer.hint}"
    assert notes(tmp_path) == ["sent"]


def _invoke(name: str, arguments: dict[str, Any], digest: str, *, read_only: bool = False) -> Invoke:
    server_call = ServerCall(key=uuid4(), digest=digest, read_only=read_only)
    return Invoke(
        id=uuid4(), target=InvokeTarget.TOOL, app="tests", name=name, arguments=orjson.dumps(arguments).decode(),
        timeout_seconds=10, begin_before=None, context=None, server_call=server_call,
    )  # fmt: skip


@pytest.mark.proves("D.1117")
async def test_a_server_that_dies_in_a_call_leaves_it_uncertain(world: World, tmp_path: Path) -> None:
    agent = await make_agent(world, [turn(call("hostile_die"))])
    async with remote_worker(world, served(tmp_path)):
        id = await submit(world, agent)
        job = await ended(world, id)
        assert (job.status, log_of(tmp_path).count("die")) == (JobStatus.PAUSED, 1)
    (died,) = (await steps_of(world, id))[0].calls
    assert died.status == "uncertain"
    assert "Nobody knows whether `hostile.die` happened" in (died.error or "")


@pytest.mark.proves("D.1117")
async def test_what_a_steward_confirmed_counts_for_a_server_beside_a_remote_worker(
    world: World, tmp_path: Path
) -> None:
    app = served(tmp_path)
    agent = await make_agent(world, [turn(call("hostile_die_first"))])
    async with remote_worker(world, app):
        async with asyncio.timeout(30):
            while not await workers.list_servers(world.db, world.admin.actor):  # noqa: ASYNC110 -- tools come first
                await asyncio.sleep(0.01)
        digest = app.tools["hostile.die_first"].version("tests").digest
        draft = ConfirmationDraft(tool="hostile.die_first", digest=digest, read_only=True)
        await agents.confirm_tool(world.db, world.admin.actor, draft)
        job = await ended(world, await submit(world, agent))
    (failed,) = (await steps_of(world, job.id))[0].calls
    assert (job.status, failed.status) == (JobStatus.COMPLETED, "failed"), "nobody is asked about what only reads"


@pytest.mark.proves("D.1117")
async def test_a_server_that_is_down_stops_neither_a_remote_worker_nor_what_was_approved(
    strict: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortex_plane.worker.mcp.connection.SETTLE_SECONDS", 0.5)
    monkeypatch.setattr("cortex_plane.worker.remote.server_stand_ins.WAIT_SECONDS", 0.2)
    monkeypatch.setattr("cortex_plane.worker.authorization.SERVER_SECONDS", 0.2)
    agent = await make_agent(strict, [turn(note())])
    id = await submit(strict, agent)
    async with remote_worker(strict, served(tmp_path)):
        await until(strict, id, W)
    (approval,) = await pending(strict, id)
    await decide(strict, approval)
    (tmp_path / "start.txt").write_text("leave")
    async with remote_worker(strict, served(tmp_path)):
        await until(strict, id, JobStatus.SLEEPING)
        async with asyncio.timeout(30):
            while (await workers.list_servers(strict.db, strict.admin.actor))[0].state != "down":  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        (server,) = await workers.list_servers(strict.db, strict.admin.actor)
        assert "exit code 3" in (server.reason or "")
        assert notes(tmp_path) == []
        (tmp_path / "start.txt").write_text("")
        job = await ended(strict, id, 60)
        assert (job.status, notes(tmp_path)) == (JobStatus.COMPLETED, ["a"])
    assert "approval_outgrown" not in await actions(strict, job)


@pytest.mark.proves("D.1115")
async def test_a_remote_worker_without_a_secret_of_a_server_does_not_connect(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HOSTILE_TOKEN", raising=False)
    with pytest.raises(SetupError, match="HOSTILE_TOKEN"):
        async with remote_worker(world, served(tmp_path, secrets=["HOSTILE_TOKEN"])):
            pass
    assert log_of(tmp_path) == []


def offer(*tools: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A server as a worker tells of it."""
    return {
        "name": "files", "command": ["x"], "url": None, "timeout_seconds": 5, "risk": "medium", "declares_risk": False,
        "on_uncertain": "ask_human", "state": "up", "reason": "", "tools": list(tools), **more,
    }  # fmt: skip


def described(name: str = "read", **more: Any) -> dict[str, Any]:
    return {
        "remote_name": name, "description": "", "parameters": {"type": "object"}, "hints": {}, "implementation": "", **more,
    }  # fmt: skip


def greeting(*servers: dict[str, Any]) -> bytes:
    plain = App("tests")
    (app,) = orjson.loads(hello(plain))["apps"]
    return hello(plain, apps=[{**app, "servers": list(servers)}])


@pytest.mark.parametrize(
    ("servers", "code"),
    [
        ([offer(name="-")], "invalid_message"),
        ([offer(on_uncertain="probe")], "invalid_app"),
        ([offer(), offer()], "invalid_app"),
        ([offer(described("x" * 90))], "invalid_app"),
        ([offer(described("read"), described("Read"))], "invalid_app"),
        ([offer(described(parameters={"type": "array"}))], "invalid_app"),
        ([offer(described(description="\x00"))], "invalid_app"),
    ],
)
@pytest.mark.proves("D.1118")
async def test_a_worker_with_servers_that_no_app_has_is_refused(
    world: World, servers: list[dict[str, Any]], code: str
) -> None:
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    async with raw_link(world, await worker_key(world, "tests"), hosts) as link:
        await link.send(greeting(*servers))
        assert (await next_of(link, "refusal"))["code"] == code


@pytest.mark.proves("D.1118")
async def test_a_worker_changes_its_own_servers_alone_and_not_without_end(
    world: World, other: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cortex_plane.mcp_client.transports.MAX_CHANGES", 1)
    monkeypatch.setattr(host_module, "CUT_SECONDS", 1.0)
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    theirs = replace(await worker_key(world, "tests"), replaces_tools=False)
    told = {"kind": "server", "app": "tests", "name": "files", "state": "up", "reason": ""}

    async def connected(link: Any) -> None:
        await link.send(greeting(offer(described())))
        await next_of(link, "welcome")

    async with raw_link(world, theirs, hosts) as link:
        await connected(link)
        await link.send(orjson.dumps({**told, "name": "strange"}))
        with pytest.raises(LinkClosed):
            await next_of(link, "goodbye")
    async with raw_link(world, theirs, hosts) as link:
        await connected(link)
        for words in ("first", "second"):
            await link.send(orjson.dumps({**told, "tools": [described(description=words)]}))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    while not await _is_described(world, words):
                        if words == "second":
                            with pytest.raises(LinkClosed):
                                await next_of(link, "goodbye")
                            break
                        await asyncio.sleep(0.01)
        assert not await _is_described(world, "second")
    # Another org's worker has an app of the same name: what it changes is its org's.
    async with raw_link(other, replace(await worker_key(other, "tests"), replaces_tools=False), hosts) as link:
        await link.send(greeting(offer(described(description="first"))))
        await next_of(link, "welcome")
        await link.send(orjson.dumps({**told, "tools": [described(description="mine")]}))
        for _ in range(1000):
            if await _is_described(other, "mine"):
                break
            await asyncio.sleep(0.01)
        assert await _is_described(other, "mine")
    assert not await _is_described(world, "mine")
    await hosts.close()


async def _is_described(world: World, words: str) -> bool:
    tools = await workers.list_tools(world.db, world.admin.actor)
    return any(tool.description == words for tool in tools)
