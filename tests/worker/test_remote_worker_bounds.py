"""What a remote worker cannot do to the plane, and what the plane cannot do to a worker."""

from __future__ import annotations

import asyncio
import os
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import orjson
import pytest

from cortex_plane.agents.model.tools import InvalidApp
from cortex_plane.jobs.model import remote_work
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.jobs.model.remote_work import (
    MAX_MESSAGE_BYTES,
    MAX_RESULT_BYTES,
    MAX_STATE_CHANGES,
    Failed,
    LinkClosed,
    OfferedTool,
    Returned,
    encode_message,
    read_worker_message,
)
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.ids import new_id
from cortex_plane.main import api_process, commands, supervisor
from cortex_plane.main.remote_worker import read_key
from cortex_plane.worker.limits import steady_clock
from cortex_plane.worker.remote import host as host_module
from cortex_plane.worker.remote.functions import encode_answer
from cortex_plane.worker.remote.host import HostParts, RemoteWorkers
from cortex_plane.worker.remote.stand_ins import RemoteCalls, StandInTool
from cortex_plane.worker.tools.app import App
from cortex_plane.worker.tools.tool import ToolContext
from tests.fixtures.people import World
from tests.fixtures.workers import KEY, call, ended, make_agent, steps_of, submit, turn, whole
from tests.worker.test_remote_workers import BRISK, hello, next_of, raw_link, remote_worker, tool_app, worker_key


async def _send(_: object) -> None: ...


@pytest.mark.proves("D.1111")
def test_a_schema_that_takes_hours_to_check_with_is_refused() -> None:
    levels: dict[str, Any] = {f"l{n}": {"anyOf": [{"$ref": f"#/$defs/l{n + 1}"}] * 4} for n in range(12)}
    schema = {
        "type": "object",
        "properties": {"x": {"$ref": "#/$defs/l0"}},
        "$defs": {**levels, "l12": {"type": "null"}},
    }
    offer = OfferedTool(
        name="act", description="", parameters=schema, read_only=True, risk=Risk.LOW, declares_risk=False,
        timeout_seconds=1, on_uncertain=None, is_async=True, takes_context=False,
    )  # fmt: skip
    with pytest.raises(InvalidApp, match="parts"):
        StandInTool(RemoteCalls(_send), "tests", offer)


@pytest.mark.proves("D.1113")
async def test_each_loss_of_a_worker_counts_against_the_job_that_it_ran(world: World, admin: Any) -> None:
    """After so many in a row the job fails, as after other hand-backs without progress."""
    started = asyncio.Event()
    app = App("tests")

    @app.tool(read_only=True, timeout=30)
    async def look() -> None:
        started.set()
        await asyncio.Event().wait()

    agent = await make_agent(world, [turn(call("look"))])
    async with remote_worker(world, app) as remote:
        id = await submit(world, agent)
        for losses in (1, 2):
            async with asyncio.timeout(10):
                await started.wait()
                started.clear()
                remote.worker_ends[-1].cut()
                while await admin.fetchval("select hand_backs from job where id = $1", id) < losses:  # noqa: ASYNC110 -- only the database knows
                    await asyncio.sleep(0.01)


@pytest.mark.proves("D.1112")
async def test_large_and_forged_answers_that_nobody_asked_for_end_the_link(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []

    def read(content: bytes) -> Any:
        parsed.append(len(content))
        return read_worker_message(content)

    monkeypatch.setattr(remote_work, "read_worker_message", read)
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    async with raw_link(world, await worker_key(world, "tests"), hosts) as link:
        await link.send(hello(tool_app([])))
        await next_of(link, "welcome")
        large = encode_message(Returned(id=uuid4(), result=f'"{"x" * 100_000}"'))
        small = encode_message(Returned(id=uuid4(), result="1"))
        for _ in range(host_module.MOST_UNKNOWN):
            await link.send(small)
        await link.send(large)
        with pytest.raises(LinkClosed):
            await next_of(link, "goodbye")
        assert max(parsed[1:]) < host_module.THREAD_BYTES, "it was not even parsed"
    await hosts.close()


@pytest.mark.proves("D.1112")
def test_an_answer_changes_only_so_many_entries_of_the_state() -> None:
    content = orjson.dumps({
        "kind": "returned", "id": str(uuid4()), "result": "1", "state": {str(n): "1" for n in range(MAX_STATE_CHANGES + 1)},
    })  # fmt: skip
    with pytest.raises(Exception, match="no message of this protocol"):
        read_worker_message(content)


@pytest.mark.proves("D.1114")
async def test_no_answer_of_a_call_that_is_over_gets_lost(world: World) -> None:
    app = App("tests")

    @app.tool
    async def finish(ctx: ToolContext) -> str:
        ctx.end_session("r" * 20_000 + "\ud800")
        return "done"

    @app.tool(read_only=True)
    async def stumble() -> str:
        raise ValueError("half a character: \ud800")

    agent = await make_agent(world, [turn(call("stumble")), turn(call("finish"))])
    async with remote_worker(world, app):
        job = await ended(world, await submit(world, agent))
    calls = [each for step in await steps_of(world, job.id) for each in step.calls]
    assert job.status is JobStatus.COMPLETED, job.error_message
    assert [each.status for each in calls] == ["failed", "completed"]
    assert "ValueError: half a character: ?" in str(calls[0].error)
    assert await whole(world)


@pytest.mark.proves("D.1114")
def test_what_cannot_be_sent_is_answered_all_the_same() -> None:
    grown = Returned(id=new_id(), result=orjson.dumps('"' * (MAX_RESULT_BYTES // 2 - 10)).decode())
    content = encode_answer(grown)
    assert len(content) < MAX_MESSAGE_BYTES
    answer = read_worker_message(content)
    assert isinstance(answer, Returned)
    assert "dropped" in answer.result
    broken = replace(grown, result="1", state={"\ud800": "1"})
    answer = read_worker_message(encode_answer(broken))
    assert isinstance(answer, Failed)
    assert "cannot be sent" in answer.message


@pytest.mark.proves("D.1114")
def test_tools_do_not_see_the_key_of_their_worker(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CORTEX_KEY", "secret")
    assert read_key(None, None) == "secret"
    assert "CORTEX_KEY" not in os.environ
    monkeypatch.setenv("CORTEX_KEY", "secret")
    (tmp_path / "key").write_text("other\n")
    (tmp_path / "key").chmod(0o600)
    assert read_key(None, tmp_path / "key") == "other"
    assert "CORTEX_KEY" not in os.environ


@pytest.mark.proves("D.1113")
def test_an_api_process_stops_before_its_supervisor_kills_it() -> None:
    longest = api_process.GRACE_SECONDS + host_module.STOP_SECONDS + host_module.LAST_SECONDS
    assert longest < supervisor.API_GRACE_SECONDS + supervisor.KILL_AFTER_SECONDS


@pytest.mark.proves("D.1114")
def test_clocks_go_on_while_a_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.CLOCK_MONOTONIC", 6, raising=False)
    monkeypatch.setattr("time.CLOCK_BOOTTIME", 7, raising=False)
    assert (steady_clock("darwin"), steady_clock("linux")) == (6, 7)


@pytest.mark.proves("D.1111")
async def test_a_worker_offers_only_so_many_tools(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MOST_TOOLS", 2)
    hosts = RemoteWorkers(HostParts(db=world.db, master_key=KEY, settings=BRISK))
    async with raw_link(world, await worker_key(world, "tests"), hosts) as link:
        await link.send(hello(tool_app([])))
        assert (await next_of(link, "refusal"))["code"] == "too_many_tools"
    await hosts.close()


@pytest.mark.proves("D.1114")
def test_a_database_is_found_however_its_variable_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DATABASE_URL", raising=False)
    monkeypatch.delenv("DATABASE_ADMIN_URL", raising=False)
    monkeypatch.setenv("CORTEX_URL", "https://plane.example.org")
    monkeypatch.setenv("CORTEX_HOME", "/nowhere")
    assert commands._address_without_database() == "https://plane.example.org"
    monkeypatch.setenv("Database_Url", "postgresql://plane")
    assert commands._address_without_database() is None
