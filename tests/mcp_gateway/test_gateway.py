"""Agents that speak MCP reach servers through the gateway, and each call of a tool through the plane."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import jwt
import mcp_types as types
import pytest
import pytest_asyncio
from cryptography.hazmat.primitives.asymmetric import ec
from mcp import Client as McpClient
from mcp import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from mcp.server.mcpserver import Context
from mcp.shared.exceptions import MCPError

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.fields import adapter
from cortex_plane.mcp_gateway import gateway as gateway_module
from cortex_plane.mcp_gateway import serving as serving_module
from cortex_plane.mcp_gateway import upstreams
from cortex_plane.mcp_gateway.call_keys import MAX_SHARED, CallKeys
from cortex_plane.mcp_gateway.gateway_calls import META
from cortex_plane.mcp_gateway.gateway_file import GatewayConfig, parse_gateway_file
from cortex_plane.mcp_gateway.serving import http_gateway
from cortex_plane.mcp_gateway.upstreams import client_name, fits_template
from cortex_plane.policies.model.versions import MAX_TERMS, DeniedToolsRequest, ToolTerms
from cortex_plane.policies.verbs.simulations import list_denied_tools
from cortex_plane.sessions.model.sessions import Termination
from cortex_plane.sessions.verbs.sessions import get_session
from tests.client.test_guard import decide_soon, ledger
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.people import World, apply_policies
from tests.mcp_servers.lines import HERE, log_of
from tests.mcp_servers.offering import Offering, offering_server, serving

T = TypeVar("T")
ERAS = ["legacy", "auto"]
RULES = """
policies:
  - {name: never, target: "shop.pay", effect: deny, reason: "no payments here"}
  - {name: small, target: "files.note", effect: deny, when: "args.text == 'bad'", reason: "not this"}
  - {name: rest, target: "*", effect: allow}
"""


@pytest.fixture
def plane(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@asynccontextmanager
async def in_one_task(context: AbstractAsyncContextManager[T]) -> AsyncIterator[T]:
    """Task groups end in the task that began them. A fixture begins and ends in two."""
    entered: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    leaving = asyncio.Event()

    async def hold() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leaving.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.create_task(hold())
    try:
        yield await entered
    finally:
        leaving.set()
        await task


@pytest_asyncio.fixture
async def shop() -> AsyncIterator[Offering]:
    async with in_one_task(offering_server()) as offering:
        yield offering


def gateway_text(folder: Path, shop_url: str, world: World, more: str = "") -> str:
    return f"""
agent = "deployer"
org = "{world.org_id}"
wait = 0.2
wait_with_progress = 30
allow = "127.0.0.0/8"
{more}

[servers.files]
command = [{sys.executable!r}, "-I", "-S", {str(HERE / "hostile.py")!r}, {str(folder)!r}]
timeout = 20

[servers.files.tools.die]
on_uncertain = "ask_human"

[servers.shop]
url = "{shop_url}"
"""


@dataclass
class Running:
    url: str
    plane: Apart

    @asynccontextmanager
    async def client(self, key: str, mode: Any = "auto", **more: Any) -> AsyncIterator[McpClient]:
        async with AsyncExitStack() as stack:
            http = await stack.enter_async_context(
                httpx2.AsyncClient(headers={"Authorization": f"Bearer {key}"}, timeout=60)
            )
            transport = streamable_http_client(self.url, http_client=http)
            yield await stack.enter_async_context(McpClient(transport, mode=mode, cache=None, **more))


@asynccontextmanager
async def running(config: GatewayConfig, plane: Apart) -> AsyncIterator[Running]:
    listener = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    async with http_gateway(config, plane.url, url) as app, serving(app, listener):
        yield Running(url, plane)


@pytest_asyncio.fixture
async def gateway(tmp_path: Path, plane: Apart, shop: Offering, world: World) -> AsyncIterator[Running]:
    config = parse_gateway_file(gateway_text(tmp_path, shop.url, world), "g.toml")
    async with in_one_task(running(config, plane)) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def strict_gateway(tmp_path: Path, plane: Apart, shop: Offering, strict: World) -> AsyncIterator[Running]:
    config = parse_gateway_file(gateway_text(tmp_path, shop.url, strict), "g.toml")
    async with in_one_task(running(config, plane)) as gateway:
        yield gateway


def status(result: types.CallToolResult) -> str:
    assert result.meta is not None
    return str(result.meta[META]["status"])


def text(result: types.CallToolResult) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, types.TextContent))


@pytest.mark.proves("D.960")
@pytest.mark.parametrize("era", ERAS)
async def test_servers_are_merged_and_calls_pass_the_plane(
    gateway: Running, world: World, shop: Offering, tmp_path: Path, era: str
) -> None:
    await apply_policies(world.db, world.admin.actor, RULES)
    async with gateway.client(world.service.secret, era) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        # What is denied whatever the arguments are is not even shown.
        assert {"files__note", "files__die", "shop__add"} <= set(tools)
        assert "shop__pay" not in tools
        annotations = tools["files__note"].annotations
        assert annotations is not None
        assert annotations.read_only_hint is True
        assert tools["shop__add"].output_schema is not None
        assert [str(resource.uri) for resource in (await client.list_resources()).resources] == ["memo://today"]
        read = await client.read_resource("memo://today")
        assert [content.text for content in read.contents if isinstance(content, types.TextResourceContents)] == [
            "milk"
        ]
        assert [prompt.name for prompt in (await client.list_prompts()).prompts] == ["shop__greet"]
        prompt = await client.get_prompt("shop__greet", {"name": "Ada"})
        assert "Greet Ada" in str(prompt.messages[0].content)

        added = await client.call_tool("shop__add", {"a": 1, "b": 2})
        assert added.structured_content == {"total": 3}
        noted = await client.call_tool("files__note", {"text": "x"})
        assert text(noted) == "noted"
        before = len(gateway.plane.requests)
        assert text(await client.call_tool("files__note", {"text": "budget"})) == "noted"
        # The intent and the outcome: a call that policy allows costs two requests.
        assert len(gateway.plane.requests) - before == 2
        ids = {call.id for call in await ledger(world) if call.tool == "files.note"}
        assert {f"note x {id}" for id in ids} & set(log_of(tmp_path))

        denied = await client.call_tool("shop__pay", {"cents": 5})
        assert (denied.is_error, status(denied)) == (True, "stopped")
        assert "no payments here" in text(denied)
        bad = await client.call_tool("files__note", {"text": "bad"})
        assert "not this" in text(bad)
        invalid = await client.call_tool("files__note", {"text": "x", "made_up": 1})
        assert (invalid.is_error, status(invalid)) == (True, "invalid_arguments")
        huge = await client.call_tool("files__note", {"text": "x" * 300_000})
        assert (huge.is_error, status(huge)) == (True, "invalid_arguments")
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.call_tool("files__nothing", {})
        # The client's own id of a call counts once, whatever it sends again.
        meta: Any = {"claudecode/toolUseId": "toolu_1"}
        once = [await client.call_tool("files__note", {"text": "y"}, meta=meta) for _ in range(2)]
        assert [text(result) for result in once] == ["noted", "noted"]
        # Without one, an identical call after one that is over is another call.
        assert text(await client.call_tool("files__note", {"text": "x"})) == "noted"
    notes = [line.split()[1] for line in log_of(tmp_path) if line.startswith("note")]
    assert notes == ["x", "budget", "y", "x"]
    assert shop.acts == []
    assert set(shop.headers) == {None}
    sessions = {(call.tool.partition(".")[0], call.session_id) for call in await ledger(world)}
    assert len(sessions) == 2


@pytest.mark.proves("D.961")
async def test_a_call_waits_for_a_person_and_the_later_identical_call_finds_the_decision(
    strict_gateway: Running, strict: World, shop: Offering
) -> None:
    async with strict_gateway.client(strict.service.secret) as client:
        pending = await client.call_tool("shop__pay", {"cents": 7})
        assert (pending.is_error, status(pending)) == (True, "pending")
        assert pending.meta is not None
        assert pending.meta[META]["link"] in text(pending)
        again = await client.call_tool("shop__pay", {"cents": 7})
        assert again.meta is not None
        assert again.meta[META]["approvalId"] == pending.meta[META]["approvalId"]
        await decide_soon(strict, arguments={"cents": 6})
        paid = await client.call_tool("shop__pay", {"cents": 7})
        assert (paid.is_error, status(paid)) == (False, "completed")
        assert text(paid) == 'paid 6 An approver changed the arguments: it ran with {"cents":6}.'
        # With progress the client waits on, and sees the decision in the same call.
        heard: list[str | None] = []

        async def on_progress(progress: float, total: float | None, message: str | None) -> None:
            heard.append(message)

        waiting = asyncio.create_task(client.call_tool("shop__pay", {"cents": 8}, progress_callback=on_progress))
        await decide_soon(strict, Choice.DENIED, reason="enough")
        denied = await waiting
        assert (denied.is_error, status(denied)) == (True, "stopped")
        assert "enough" in text(denied)
    assert [act for act, _ in shop.acts] == ["pay 6"]


@pytest.mark.proves("D.961")
@pytest.mark.parametrize("era", ERAS)
async def test_a_client_that_shows_pages_is_asked_to_show_the_request(
    strict_gateway: Running, strict: World, shop: Offering, era: str
) -> None:
    pages: list[str] = []

    async def show(_: Any, params: Any) -> types.ElicitResult:
        pages.append(params.url)
        await decide_soon(strict)
        return types.ElicitResult(action="accept")

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        pass

    async with strict_gateway.client(strict.service.secret, era, elicitation_callback=show) as client:
        paid = await client.call_tool("shop__pay", {"cents": 7}, progress_callback=hear)
    assert text(paid) == "paid 7"
    assert [page.startswith(f"{strict_gateway.plane.url}/approvals/") for page in pages] == [True]
    assert [act for act, _ in shop.acts] == ["pay 7"]


@pytest.mark.proves("D.961")
async def test_an_approval_at_one_server_is_none_at_another(
    strict_gateway: Running, strict: World, shop: Offering, tmp_path: Path
) -> None:
    async with in_one_task(offering_server()) as production:
        config = parse_gateway_file(gateway_text(tmp_path, production.url, strict), "g.toml")
        async with (
            in_one_task(running(config, strict_gateway.plane)) as behind,
            strict_gateway.client(strict.service.secret) as staging,
            behind.client(strict.service.secret) as live,
        ):
            assert status(await staging.call_tool("shop__pay", {"cents": 9})) == "pending"
            await decide_soon(strict)
            assert status(await live.call_tool("shop__pay", {"cents": 9})) == "pending"
            assert status(await staging.call_tool("shop__pay", {"cents": 9})) == "completed"
    assert ([act for act, _ in shop.acts], production.acts) == (["pay 9"], [])


@pytest.mark.proves("D.962")
async def test_a_server_that_dies_in_a_call_leaves_a_doubt_and_the_others_alone(
    gateway: Running, world: World, tmp_path: Path
) -> None:
    async with gateway.client(world.service.secret) as client:
        died = await client.call_tool("files__die", {})
        assert (died.is_error, status(died)) == (True, "in_doubt")
        (tmp_path / "start.txt").write_text("leave")
        added = await client.call_tool("shop__add", {"a": 1, "b": 1})
        assert added.structured_content == {"total": 2}
        # It is not run again blindly.
        (tmp_path / "start.txt").unlink()
        again = await client.call_tool("files__die", {})
        assert (again.is_error, status(again)) == (True, "in_doubt")
    assert log_of(tmp_path).count("die") == 1
    (call,) = [call for call in await ledger(world) if call.tool == "files.die"]
    assert call.status == "uncertain"


@pytest.mark.proves("D.962")
async def test_a_server_over_http_that_goes_away_in_a_call_leaves_a_doubt_and_the_others_alone(
    plane: Apart, world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upstreams, "WAIT_SECONDS", 0.1)
    async with AsyncExitStack() as behind:
        shop = await behind.enter_async_context(in_one_task(offering_server()))
        config = parse_gateway_file(gateway_text(tmp_path, shop.url, world), "g.toml")
        async with in_one_task(running(config, plane)) as gateway, gateway.client(world.service.secret) as client:
            slow = asyncio.create_task(client.call_tool("shop__slow", {}))
            await shop.entered.wait()
            await behind.aclose()
            lost = await slow
            assert (lost.is_error, status(lost)) == (True, "in_doubt")
            # It cannot be reached now, and nothing else is hurt.
            refused = await client.call_tool("shop__add", {"a": 1, "b": 1})
            assert (refused.is_error, status(refused)) == (True, "failed")
            assert text(await client.call_tool("files__note", {"text": "x"})) == "noted"
    assert [act for act, _ in shop.acts] == ["slow"]
    assert {call.tool: call.status for call in await ledger(world)} == {
        "shop.slow": "uncertain", "shop.add": "failed", "files.note": "completed"
    }  # fmt: skip


@pytest.mark.proves("D.962")
async def test_a_doubt_outlives_connections_gateways_and_days_and_nothing_else_does(
    plane: Apart, world: World, shop: Offering, tmp_path: Path
) -> None:
    config = parse_gateway_file(gateway_text(tmp_path, shop.url, world), "g.toml")
    for era in ("legacy", "legacy", "auto"):
        async with in_one_task(running(config, plane)) as gateway:
            for _ in range(2):
                async with gateway.client(world.service.secret, era) as client:
                    assert status(await client.call_tool("files__die", {})) == "in_doubt"
                    assert (await client.call_tool("shop__add", {"a": 1, "b": 2})).structured_content == {"total": 3}
        async with world.db.transaction(world.org_id) as tx:
            await tx.rows("update session set created_at = created_at - interval '1 day'")
    assert log_of(tmp_path).count("die") == 1
    calls = [(call.tool.partition(".")[0], call.session_id) for call in await ledger(world)]
    assert len([name for name, _ in calls if name == "shop"]) == 6
    assert [len({id for name, id in calls if name == server}) for server in ("files", "shop")] == [1, 3]


@pytest.mark.proves("D.1092")
async def test_a_client_does_not_go_on_where_somebody_ended_its_session(
    gateway: Running, world: World, shop: Offering
) -> None:
    async with gateway.client(world.service.secret) as client:
        assert status(await client.call_tool("shop__add", {"a": 1, "b": 2})) == "completed"
        (call,) = await ledger(world)
        await session_lifecycle.terminate(world.db, world.admin.actor, call.session_id, Termination(reason="stop"))
        for _ in range(2):
            refused = await client.call_tool("shop__add", {"a": 1, "b": 3})
            assert (status(refused), "over" in text(refused)) == ("stopped", True)
    async with gateway.client(world.service.secret) as again:
        assert status(await again.call_tool("shop__add", {"a": 1, "b": 3})) == "stopped"
    async with gateway.client(world.admin.secret) as other:
        assert status(await other.call_tool("shop__add", {"a": 1, "b": 3})) == "completed"
    assert len(await ledger(world)) == 2


@pytest.mark.proves("D.962")
async def test_a_client_that_goes_away_finds_the_result_with_the_identical_call(
    gateway: Running, world: World, shop: Offering
) -> None:
    async with gateway.client(world.service.secret) as client:
        call = asyncio.create_task(client.call_tool("shop__slow", {}))
        await shop.entered.wait()
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        shop.opened.set()
        async with asyncio.timeout(20):
            while status(again := await client.call_tool("shop__slow", {})) == "in_doubt":
                pass  # the first one has not been reported yet
        assert (text(again), status(again)) == ("done at last", "completed")
    assert [act for act, _ in shop.acts] == ["slow"]


@pytest.mark.proves("D.964")
async def test_what_a_server_is_given_never_reaches_a_client(
    plane: Apart, world: World, shop: Offering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_TOKEN", "very-secret-token")

    @shop.server.resource("echo://{word}")
    def echo(word: str) -> str:
        raise MCPError(-32050, f"{word}: {shop.headers[-1]} is not enough", {"used": shop.headers[-1]})

    @shop.server.tool()
    async def tell(ctx: Context[Any]) -> str:
        await ctx.report_progress(1, 2, f"using {shop.headers[-1]}")
        return f"used {shop.headers[-1]}"

    header = 'headers = { Authorization = { env = "SHOP_TOKEN", prefix = "Bearer " } }'
    config = parse_gateway_file(f"{gateway_text(tmp_path, shop.url, world)}{header}", "g.toml")
    heard: list[str | None] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with in_one_task(running(config, plane)) as gateway, gateway.client(world.service.secret) as client:
        await client.list_resource_templates()
        with pytest.raises(MCPError) as refused:
            await client.read_resource("echo://a")
        used = await client.call_tool("shop__tell", {}, progress_callback=hear)
    assert shop.headers[-1] == "Bearer very-secret-token"
    assert refused.value.error.model_dump() == {
        "code": -32050, "message": "a: Bearer [redacted] is not enough", "data": {"used": "Bearer [redacted]"}
    }  # fmt: skip
    assert (text(used), heard) == ("used Bearer [redacted]", ["using Bearer [redacted]"])


@pytest.mark.proves("D.960")
async def test_no_server_takes_away_tools_of_another_or_answers_for_it(
    plane: Apart, world: World, shop: Offering, tmp_path: Path
) -> None:
    async with in_one_task(offering_server()) as rival:
        override = '[servers.rival]\nurl = "{}"\nprefix = "shop"\n[servers.rival.tools.pay]\nname = "shop.pay"\n'
        config = parse_gateway_file(gateway_text(tmp_path, shop.url, world) + override.format(rival.url), "g.toml")
        async with in_one_task(running(config, plane)) as gateway, gateway.client(world.service.secret) as client:
            assert "shop__pay" in {tool.name for tool in (await client.list_tools()).tools}
            assert text(await client.call_tool("shop__pay", {"cents": 3})) == "paid 3"
            with pytest.raises(MCPError, match="No server"):
                await client.read_resource("memo://today")
    assert ([act for act, _ in shop.acts], rival.acts) == (["pay 3"], [])


@pytest.mark.proves("D.963")
async def test_changes_of_a_server_reach_clients_of_both_eras(gateway: Running, world: World, tmp_path: Path) -> None:
    changed = asyncio.Event()

    async def hear(message: Any) -> None:
        if getattr(message, "method", None) == "notifications/tools/list_changed":
            changed.set()

    async with (
        gateway.client(world.service.secret, "legacy", message_handler=hear) as old,
        gateway.client(world.service.secret) as new,
    ):
        await old.list_tools()
        await new.list_tools()
        async with asyncio.timeout(20), new.listen(tools_list_changed=True) as events:
            (tmp_path / "tools.json").write_text('[{"name": "fresh", "inputSchema": {"type": "object"}}]')
            await new.call_tool("files__announce", {})
            await anext(aiter(events))
            await changed.wait()
        for client in (old, new):
            names = {tool.name for tool in (await client.list_tools()).tools}
            assert "files__fresh" in names
            assert "files__note" not in names


@pytest.mark.proves("D.963")
async def test_changes_of_prompts_and_resources_reach_clients_of_both_eras(
    plane: Apart, world: World, shop: Offering, tmp_path: Path
) -> None:
    heard = {kind: asyncio.Event() for kind in ("prompts", "resources")}

    async def hear(message: Any) -> None:
        kind = str(getattr(message, "method", "")).removeprefix("notifications/").removesuffix("/list_changed")
        if kind in heard:
            heard[kind].set()

    @shop.server.tool()
    async def restock(ctx: Context[Any]) -> str:
        @shop.server.prompt()
        def part(name: str) -> str:
            return f"Good-bye {name}."

        @shop.server.resource("memo://tomorrow")
        def tomorrow() -> str:
            return "bread"

        await ctx.notify_prompts_changed()
        await ctx.notify_resources_changed()
        return "restocked"

    config = parse_gateway_file(gateway_text(tmp_path, shop.url, world), "g.toml")
    async with (
        in_one_task(running(config, plane)) as gateway,
        gateway.client(world.service.secret, "legacy", message_handler=hear) as old,
        gateway.client(world.service.secret) as new,
    ):
        await old.list_prompts()
        async with asyncio.timeout(20), new.listen(prompts_list_changed=True, resources_list_changed=True) as events:
            await new.call_tool("shop__restock", {})
            changes = aiter(events)
            assert {type(await anext(changes)).__name__ for _ in range(2)} == {
                "PromptsListChanged", "ResourcesListChanged"
            }  # fmt: skip
            for event in heard.values():
                await event.wait()
        for client in (old, new):
            assert {prompt.name for prompt in (await client.list_prompts()).prompts} == {"shop__greet", "shop__part"}
            uris = {str(resource.uri) for resource in (await client.list_resources()).resources}
            assert uris == {"memo://today", "memo://tomorrow"}


@pytest.mark.proves("D.964")
async def test_one_key_leaves_room_for_the_sessions_of_others(
    gateway: Running, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving_module, "SESSIONS_OF_A_CALLER", 2)
    monkeypatch.setattr(gateway_module, "STREAMS_OF_A_CALLER", 1)
    hello = {
        "jsonrpc": "2.0", "id": 1, "method": "initialize",
        "params": {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}},
    }  # fmt: skip
    async with httpx2.AsyncClient() as http:

        async def open_session(key: str) -> httpx2.Response:
            accept = {"Authorization": f"Bearer {key}", "Accept": "application/json, text/event-stream"}
            return await http.post(gateway.url, json=hello, headers=accept)

        opened = [await open_session(world.service.secret) for _ in range(3)]
        assert [answer.status_code for answer in opened] == [200, 200, 429]
        error = opened[-1].json()["error"]
        assert (error["code"], "2 sessions" in error["message"]) == (types.INTERNAL_ERROR, True)
        assert (await open_session(world.admin.secret)).status_code == 200
        # One that ends makes room.
        ended = {
            "Mcp-Session-Id": opened[0].headers["mcp-session-id"],
            "Authorization": f"Bearer {world.service.secret}",
        }
        assert (await http.delete(gateway.url, headers=ended)).status_code == 200
        assert (await open_session(world.service.secret)).status_code == 200
    async with gateway.client(world.service.secret) as client, gateway.client(world.admin.secret) as other:
        async with client.listen(tools_list_changed=True):
            with pytest.raises(MCPError, match="1 subscriptions"):
                async with client.listen(tools_list_changed=True):
                    pass
            async with other.listen(tools_list_changed=True):
                pass
        async with client.listen(tools_list_changed=True):
            pass


@pytest.mark.proves("D.964")
async def test_each_caller_is_the_person_of_the_key(
    gateway: Running, world: World, other: World, shop: Offering
) -> None:
    async with httpx2.AsyncClient() as http:
        # In another org other people would decide, and other policies hold.
        for headers in ({}, *({"Authorization": f"Bearer {key}"} for key in ("cortex_key_wrong", other.admin.secret))):
            refused = await http.post(gateway.url, json={}, headers=headers)
            assert refused.status_code == 401
            challenge = refused.headers["www-authenticate"]
            where = challenge.partition('resource_metadata="')[2].rstrip('"')
            document = (await http.get(where)).json()
            assert document["resource"] == gateway.url
        strange = await http.post(
            gateway.url,
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
            headers={"Authorization": f"Bearer {world.service.secret}", "Origin": "https://evil.example"},
        )
        assert strange.status_code == 403
        unknown = await http.post(
            gateway.url,
            json={"jsonrpc": "2.0", "id": 1, "method": "tools/list"},
            headers={
                "Authorization": f"Bearer {world.service.secret}", "MCP-Protocol-Version": "1999-01-01",
                "Accept": "application/json, text/event-stream",
            },
        )  # fmt: skip
        assert unknown.status_code == 400
        assert "error" in unknown.json()
        headers = {"Authorization": f"Bearer {world.service.secret}", "Accept": "application/json, text/event-stream"}
        huge = await http.post(gateway.url, content=b"[" + b" " * 1024 * 1024, headers=headers)
        assert huge.status_code == 413
    for person in (world.service, world.admin, world.service):
        async with gateway.client(person.secret, "legacy") as client:
            await client.call_tool("shop__add", {"a": 1, "b": 2})
    assert await ledger(other) == []
    assert len({call.session_id for call in await ledger(world)}) == 2


@pytest.mark.proves("D.964")
async def test_tokens_of_the_issuer_count_only_for_this_gateway_and_people_of_its_file(
    plane: Apart, world: World, shop: Offering, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    private = ec.generate_private_key(ec.SECP256R1())
    key = jwt.algorithms.ECAlgorithm.to_jwk(private.public_key(), as_dict=True) | {"kid": "k1", "alg": "ES256"}
    (tmp_path / "keys.json").write_text(json.dumps({"keys": [key]}))
    monkeypatch.setenv("ADA_KEY", world.admin.secret)
    oauth = f"""
[oauth]
issuer = "https://issuer.example"
jwks = "{tmp_path / "keys.json"}"
people = {{ "ada@example.org" = {{ key_env = "ADA_KEY" }} }}
"""
    async with in_one_task(
        running(parse_gateway_file(gateway_text(tmp_path, shop.url, world, oauth), "g"), plane)
    ) as gateway:

        def token(signer: Any = private, **changes: Any) -> str:
            claims = {
                "iss": "https://issuer.example", "aud": gateway.url, "sub": "ada@example.org", "exp": int(time.time()) + 60
            } | changes  # fmt: skip
            return jwt.encode(claims, signer, algorithm="ES256", headers={"kid": "k1"})

        refused = {
            "audience": token(aud="https://other.example/mcp"),
            "issuer": token(iss="https://evil.example"),
            "time": token(exp=int(time.time()) - 3600),
            "person": token(sub="eve@example.org"),
            "signature": token(ec.generate_private_key(ec.SECP256R1())),
            "algorithm": jwt.encode({"sub": "ada@example.org"}, "", algorithm="none"),
        }
        async with httpx2.AsyncClient() as http:
            answers = {
                name: (await http.post(gateway.url, json={}, headers={"Authorization": f"Bearer {text}"})).status_code
                for name, text in refused.items()
            }
            where = f"{gateway.url.removesuffix('/mcp')}/.well-known/oauth-protected-resource/mcp"
            assert (await http.get(where)).json()["authorization_servers"] == ["https://issuer.example"]
        assert answers == dict.fromkeys(refused, 401)
        async with gateway.client(token()) as client:
            assert text(await client.call_tool("files__note", {"text": "as Ada"})) == "noted"
    (call,) = await ledger(world)
    session = await get_session(world.db, world.admin.actor, call.session_id)
    assert session.user_account_id == world.admin.member_id
    assert set(shop.headers) == {None}


@pytest.mark.proves("D.965")
@pytest.mark.parametrize(
    ("fault", "line", "words"),
    [
        ('agent = "a"\n[servers.x\n', 2, "not TOML"),
        ('agent = "a"\n\n[servers.x]\ncommand = ["p"]\nshell = true\n', 5, "Extra inputs"),
        ('agent = "a"\n[servers.x]\ncommand = ["p"]\n[servers.x.tools.t]\nrisk = "none"\n', 5, "low"),
        ('agent = "a"\nallow = "nowhere/99"\n[servers.x]\ncommand = ["p"]\n', 2, "no range"),
        ('agent = "a"\n[servers.x]\nurl = "ftp://x"\n', 2, "web address"),
        ('[servers.x]\ncommand = ["p"]\n', 1, "agent"),
        ('agent = "a"\n[servers.x__y]\ncommand = ["p"]\n', 2, "mistaken"),
    ],
)
def test_a_fault_of_the_file_names_its_line(fault: str, line: int, words: str) -> None:
    with pytest.raises(InvalidInput, match=f"line {line}") as error:
        parse_gateway_file(fault, "g.toml")
    assert words in str(error.value)


@pytest.mark.proves("D.964")
async def test_over_http_the_file_must_name_the_org() -> None:
    config = parse_gateway_file('agent = "a"\n[servers.x]\ncommand = ["p"]\n', "g.toml")
    with pytest.raises(InvalidInput, match="names no `org`"):
        async with http_gateway(config, "http://127.0.0.1:1", "http://127.0.0.1:2/mcp"):
            pass


def test_the_first_identical_calls_have_the_same_keys_in_another_process() -> None:
    keys: list[list[str]] = []
    for process in ("p1", "p2"):
        turns, of_process = CallKeys(process), []
        for _ in range(MAX_SHARED + 2):
            with turns.turn("s", "tool", {"a": 1}) as turn:
                of_process.append(turn.key)
                turn.is_over = True
        keys.append(of_process)
    assert [one == other for one, other in zip(*keys, strict=True)] == [True] * MAX_SHARED + [False] * 2
    assert len({*keys[0], *keys[1]}) == MAX_SHARED + 4


@pytest.mark.parametrize(
    ("template", "uri", "fits"),
    [
        ("db://{table}/rows/{id}", "db://a/rows/1", True),
        ("db://{table}/rows/{id}", "db://a/columns/1", False),
        ("db://{a}x{b}x", "db://x", False),
        ("db://{a}", "file://a", False),
        ("db://a", "db://a", True),
        ("a{x}a", "a", False),
        # A regular expression would look at all ways to divide this one.
        ("{a}a" * 30 + "{x}b", "a" * 1990 + "c", False),
        ("{a}" * 33, "a", False),
    ],
)
def test_whether_a_template_fits_is_found_in_one_pass(template: str, uri: str, fits: bool) -> None:
    start = time.process_time()
    assert fits_template(template, uri) is fits
    assert time.process_time() - start < 0.5


def test_names_for_clients_are_stable_short_and_never_shared() -> None:
    names = [client_name("x", name) for name in ("a", "a b", "a_b", "é", "a" * 80, "a" * 79 + "b")]
    assert names[0] == "x__a"
    assert len(set(names)) == len(names)
    assert all(re.fullmatch("[A-Za-z0-9_-]{1,64}", name) for name in names)
    assert client_name("", "test_simple") == "test_simple"


@pytest.mark.proves("D.960")
async def test_an_address_inside_the_network_is_reached_only_where_the_file_lists_it(
    plane: Apart, world: World, shop: Offering, tmp_path: Path
) -> None:
    config = parse_gateway_file(gateway_text(tmp_path, shop.url, world).replace("127.0.0.0/8", "10.0.0.0/8"), "g.toml")
    async with in_one_task(running(config, plane)) as gateway, gateway.client(world.service.secret) as client:
        names = {tool.name.partition("__")[0] for tool in (await client.list_tools()).tools}
    assert names == {"files"}
    assert shop.headers == []


@pytest.mark.proves("D.960")
async def test_cortex_mcp_serves_one_client_over_stdio(
    plane: Apart, world: World, shop: Offering, tmp_path: Path
) -> None:
    file = tmp_path / "cortex-mcp.toml"
    file.write_text(gateway_text(tmp_path, shop.url, world))
    command = StdioServerParameters(
        command=sys.executable,
        args=["-m", "cortex_plane", "mcp", "--file", str(file)],
        env={**os.environ, "CORTEX_URL": plane.url, "CORTEX_KEY": world.service.secret},
    )
    async with McpClient(command) as client:
        assert "shop__add" in {tool.name for tool in (await client.list_tools()).tools}
        assert text(await client.call_tool("files__note", {"text": "z"})) == "noted"
    assert [line.split()[:2] for line in log_of(tmp_path) if line.startswith("note")] == [["note", "z"]]


@pytest.mark.proves("D.960")
async def test_a_tool_is_hidden_only_where_no_arguments_could_be_allowed(world: World) -> None:
    rules = """
policies:
  - {name: some, target: "a.*", effect: allow, when: "args.n == 1"}
  - {name: ask, target: "b.*", effect: requires_approval, when: "args.n == 1"}
  - {name: worse, target: "c.*", effect: deny, when: "args.n == 1"}
  - {name: other_worse, target: "e.*", effect: deny, when: "args.size() < 9"}
  - {name: never, target: "*", effect: deny}
"""
    await apply_policies(world.db, world.admin.actor, rules)
    question = DeniedToolsRequest(agent="deployer", tools=[ToolTerms(tool=f"{name}.act") for name in "abcde"])
    answer = await list_denied_tools(world.db, world.service.actor, question)
    assert answer.denied == ["c.act", "d.act", "e.act"]


def test_a_gateway_asks_about_a_bounded_number_of_tools_at_once() -> None:
    with pytest.raises(ValueError, match="at most"):
        adapter(DeniedToolsRequest).validate_python({"agent": "deployer", "tools": [{"tool": "a.b"}] * (MAX_TERMS + 1)})
