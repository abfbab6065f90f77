"""A call that waits for a person is a task, for clients that declare tasks: it outlives the gateway and belongs to who made it."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg
import mcp_types as types
import pytest
from mcp import Client as McpClient
from mcp.shared.exceptions import MCPError

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.jobs.model.effects import Verdict
from cortex_plane.mcp_gateway import tasks
from cortex_plane.mcp_gateway.gateway_file import GatewayConfig, parse_gateway_file
from cortex_plane.mcp_gateway.serving import http_gateway
from tests.client.test_guard import decide_soon, ledger
from tests.client.test_lost_calls import answer_doubt
from tests.fixtures.apart import Apart
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.mcp_gateway.task_client import CreatedTask, ask, task_client
from tests.mcp_gateway.test_gateway import Running, gateway_text, in_one_task, plane, shop, status, strict_gateway, text
from tests.mcp_servers.lines import log_of
from tests.mcp_servers.offering import Offering, serving

__all__ = ["plane", "shop", "strict_gateway"]
UNKNOWN = types.INVALID_PARAMS
VERBS: dict[str, dict[str, Any]] = {"get": {}, "cancel": {}, "update": {"inputResponses": {}}}


async def begin(client: McpClient, tool: str, arguments: dict[str, Any]) -> str:
    answer: Any = await client.session.call_tool(tool, arguments, allow_claimed=True)
    assert isinstance(answer, CreatedTask), answer
    assert answer.status == "working"
    return answer.task_id


async def settled(client: McpClient, task: str) -> dict[str, Any]:
    async with asyncio.timeout(20):
        while (state := await ask(client.session, "get", task))["status"] in ("working", "input_required"):
            pass  # each look waits a little for a call that runs
    return state


def result_of(state: dict[str, Any]) -> types.CallToolResult:
    assert state["status"] == "completed", state
    return types.CallToolResult.model_validate(state["result"])


@asynccontextmanager
async def served(config: GatewayConfig, plane: Apart, port: int = 0) -> AsyncIterator[str]:
    """A gateway at the same address as the one before."""
    listener = socket.create_server(("127.0.0.1", port))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    async with http_gateway(config, plane.url, url) as app, serving(app, listener):
        yield url


@asynccontextmanager
async def program(*words: str) -> AsyncIterator[asyncio.subprocess.Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.mcp_gateway.task_client", *words,
        stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def printed(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    async with asyncio.timeout(60):
        line: dict[str, Any] = json.loads(await process.stdout.readline())
    return line


@pytest.mark.proves("D.1051")
async def test_a_task_survives_its_client_and_its_gateway(
    plane: Apart, strict: World, shop: Offering, tmp_path: Path
) -> None:
    config = parse_gateway_file(gateway_text(tmp_path, shop.url, strict), "g.toml")
    key = strict.service.secret
    async with (
        in_one_task(served(config, plane)) as url,
        program(url, key, "call", "shop__pay", '{"cents": 7}') as first,
    ):
        task = (await printed(first))["task"]
        first.kill()
    await decide_soon(strict, arguments={"cents": 6})
    assert shop.acts == []
    async with (
        in_one_task(served(config, plane, int(url.rpartition(":")[2].removesuffix("/mcp")))),
        program(url, key, "follow", task) as second,
    ):
        result = types.CallToolResult.model_validate(await printed(second))
        assert text(result) == 'paid 6 An approver changed the arguments: it ran with {"cents":6}.'
        async with task_client(url, key) as client:
            # The result stays; an identical call is a new one.
            assert text(result_of(await ask(client.session, "get", task))) == text(result)
            assert await begin(client, "shop__pay", {"cents": 7}) != task
    assert [act for act, _ in shop.acts] == ["pay 6"]


@pytest.mark.proves("D.1051")
async def test_a_task_ends_as_people_decide(strict_gateway: Running, strict: World, shop: Offering) -> None:
    async with task_client(strict_gateway.url, strict.service.secret) as client:
        denied = await begin(client, "shop__pay", {"cents": 1})
        assert await begin(client, "shop__pay", {"cents": 1}) == denied
        await decide_soon(strict, Choice.DENIED, reason="enough")
        refused = result_of(await settled(client, denied))
        assert (refused.is_error, status(refused)) == (True, "stopped")
        assert "enough" in text(refused)
        paid = await begin(client, "shop__pay", {"cents": 2})
        await decide_soon(strict)
        assert text(result_of(await settled(client, paid))) == "paid 2"
        # Once its result was fetched, an identical call is another one.
        assert await begin(client, "shop__pay", {"cents": 2}) not in (denied, paid)
    assert [act for act, _ in shop.acts] == ["pay 2"]


@pytest.mark.proves("D.1051")
async def test_a_task_shows_the_page_where_people_decide(
    strict_gateway: Running, strict: World, shop: Offering
) -> None:
    async def show(_: Any, __: Any) -> types.ElicitResult:
        raise AssertionError("only the task asks to show it")

    async with task_client(strict_gateway.url, strict.service.secret, elicitation_callback=show) as client:
        task = await begin(client, "shop__pay", {"cents": 2})
        state = await ask(client.session, "get", task)
        ((name, request),) = state["inputRequests"].items()
        assert (state["status"], request["method"]) == ("input_required", "elicitation/create")
        assert request["params"]["url"].startswith(f"{strict_gateway.plane.url}/approvals/")
        await ask(client.session, "update", task, inputResponses={name: {"action": "accept"}})
        state = await ask(client.session, "get", task)
        assert (state["status"], "inputRequests" in state) == ("working", False)
        await decide_soon(strict)
        assert text(result_of(await settled(client, task))) == "paid 2"


@pytest.mark.proves("D.1051")
async def test_a_cancelled_task_asks_nobody_and_what_runs_goes_on(
    strict_gateway: Running, strict: World, shop: Offering
) -> None:
    async with task_client(strict_gateway.url, strict.service.secret) as client:
        task = await begin(client, "shop__pay", {"cents": 3})
        for _ in range(2):
            await ask(client.session, "cancel", task)
        assert (await ask(client.session, "get", task))["status"] == "cancelled"
        assert [call.status for call in await ledger(strict)] == ["rejected"]
        # Another identical call is not cancelled with it.
        assert await begin(client, "shop__pay", {"cents": 3}) != task
        await decide_soon(strict, Choice.DENIED)
        slow = await begin(client, "shop__slow", {})
        await decide_soon(strict)
        assert (await ask(client.session, "get", slow))["status"] == "working"
        await ask(client.session, "cancel", slow)
        assert (await ask(client.session, "get", slow))["status"] == "working"
        shop.opened.set()
        assert text(result_of(await settled(client, slow))) == "done at last"
    assert [act for act, _ in shop.acts] == ["slow"]


@pytest.mark.proves("D.1052")
async def test_a_task_belongs_to_who_made_it_and_to_clients_that_declare_tasks(
    strict_gateway: Running, strict: World
) -> None:
    async with (
        task_client(strict_gateway.url, strict.service.secret) as client,
        task_client(strict_gateway.url, strict.admin.secret) as admin,
        strict_gateway.client(strict.service.secret) as plain,
        strict_gateway.client(strict.service.secret, "legacy") as old,
    ):
        task = await begin(client, "shop__pay", {"cents": 4})
        id = task.partition(".")[0]
        strangers = [(admin, task), (client, id), (client, f"{id}."), (client, f"{id}.{'0' * 32}"), (client, "é" * 9)]
        for who, name in strangers:
            for verb, more in VERBS.items():
                with pytest.raises(MCPError) as refused:
                    await ask(who.session, verb, name, **more)
                assert refused.value.code == UNKNOWN
        for who, code in ((plain, types.MISSING_REQUIRED_CLIENT_CAPABILITY), (old, types.METHOD_NOT_FOUND)):
            with pytest.raises(MCPError) as refused:
                await ask(who.session, "get", task)
            assert refused.value.code == code
            # They are answered as before.
            assert status(await who.call_tool("shop__pay", {"cents": 4})) == "pending"
        assert (await ask(client.session, "get", task))["status"] == "working"


@pytest.mark.proves("D.1052")
async def test_tasks_are_bounded_and_expire(
    strict_gateway: Running, strict: World, admin: asyncpg.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = await Clock.install(admin, datetime.now(UTC))
    monkeypatch.setattr(tasks, "OPEN_TASKS", 1)
    async with task_client(strict_gateway.url, strict.service.secret) as client:
        task = await begin(client, "shop__pay", {"cents": 5})
        assert status(await client.call_tool("shop__pay", {"cents": 6})) == "pending"
        assert (await ask(client.session, "get", task))["ttlMs"] >= timedelta(days=7).total_seconds() * 1000
        await clock.advance(timedelta(days=9))
        with pytest.raises(MCPError, match="expired") as refused:
            await ask(client.session, "get", task)
        assert refused.value.code == UNKNOWN


@pytest.mark.proves("D.1051")
async def test_what_was_asked_about_is_what_runs_or_nothing(
    plane: Apart, strict: World, shop: Offering, tmp_path: Path
) -> None:
    before = gateway_text(tmp_path, shop.url, strict)
    key = strict.service.secret
    async with in_one_task(served(parse_gateway_file(before, "g.toml"), plane)) as url, task_client(url, key) as client:
        changed = await begin(client, "shop__pay", {"cents": 8})
    await decide_soon(strict)
    after = before + '\n[servers.shop.tools.pay]\nrisk = "critical"\n'
    async with in_one_task(served(parse_gateway_file(after, "g.toml"), plane)) as url, task_client(url, key) as client:
        state = await ask(client.session, "get", changed)
        assert (state["status"], state["error"]["code"]) == ("failed", types.INVALID_PARAMS)
    assert shop.acts == []


@pytest.mark.proves("D.1051", "D.962")
async def test_a_server_that_dies_in_a_task_leaves_it_working_until_people_know(
    strict_gateway: Running, strict: World, tmp_path: Path
) -> None:
    async with task_client(strict_gateway.url, strict.service.secret) as client:
        task = await begin(client, "files__die", {})
        await decide_soon(strict)
        async with asyncio.timeout(20):
            while "Nobody knows" not in (state := await ask(client.session, "get", task)).get("statusMessage", ""):
                pass
        assert state["status"] == "working"
        assert (await ask(client.session, "get", task))["status"] == "working"
    assert log_of(tmp_path).count("die") == 1
    (call,) = await ledger(strict)
    assert call.status == "uncertain"


@pytest.mark.proves("D.1104")
async def test_an_answer_that_a_task_told_is_no_answer_to_another_call(
    plane: Apart, strict: World, shop: Offering, tmp_path: Path
) -> None:
    config = parse_gateway_file(gateway_text(tmp_path, shop.url, strict), "g.toml")
    key = strict.service.secret
    async with in_one_task(served(config, plane)) as url, task_client(url, key) as client:
        task = await begin(client, "files__die", {})
        await decide_soon(strict)
        async with asyncio.timeout(20):
            while "Nobody knows" not in (await ask(client.session, "get", task)).get("statusMessage", ""):
                pass
        await answer_doubt(strict, Verdict.HAPPENED)
        assert status(result_of(await settled(client, task))) == "completed"
    # After a restart nothing is known of it: an identical call is another act, about which people are asked.
    async with in_one_task(served(config, plane)) as url, task_client(url, key) as client:
        assert await begin(client, "files__die", {}) != task
    assert [call.status for call in await ledger(strict)] == ["completed", "awaiting"]
    assert log_of(tmp_path).count("die") == 1


@pytest.mark.proves("D.1051")
async def test_a_call_that_needs_nobody_is_no_task(strict_gateway: Running, strict: World) -> None:
    await apply_policies(strict.db, strict.admin.actor, 'policies: [{name: all, target: "*", effect: allow}]')
    async with task_client(strict_gateway.url, strict.service.secret) as client:
        assert text(await client.call_tool("shop__pay", {"cents": 9})) == "paid 9"
        capabilities = client.server_capabilities
        assert capabilities is not None
        assert capabilities.extensions == {"io.modelcontextprotocol/tasks": {}}
    async with strict_gateway.client(strict.service.secret, "legacy") as old:
        capabilities = old.server_capabilities
        assert capabilities is not None
        assert not capabilities.extensions
        assert capabilities.tools is not None
        assert capabilities.tools.list_changed is True
