"""The protocol's own conformance suite, in front of the gateway, with a server behind it that has what the suite asks for."""

from __future__ import annotations

import asyncio
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cortex_plane.mcp_gateway.gateway_file import parse_gateway_file
from cortex_plane.mcp_gateway.serving import http_gateway
from tests.conftest import Urls
from tests.fixtures.apart import Apart, beside
from tests.fixtures.people import World
from tests.mcp_servers.conformance import conformance_server
from tests.mcp_servers.offering import serving

SUITE = Path(__file__).parents[2] / ".venv/conformance/node_modules/@modelcontextprotocol/conformance/dist/index.js"
NOT_DECLARED = [
    "logging-set-level", "completion-complete", "tools-call-with-logging", "tools-call-sampling", "tools-call-elicitation",
    "elicitation-sep1034-defaults", "elicitation-sep1330-enums", "server-sse-polling", "resources-subscribe",
    "resources-unsubscribe",
]  # fmt: skip
"""What the gateway does not pass on, and does not say that it does."""


@pytest.fixture
def plane(urls: Urls) -> Iterator[Apart]:
    with beside(urls.app) as running:
        yield running


@pytest.mark.proves("D.966")
@pytest.mark.skipif(
    not SUITE.exists() or shutil.which("node") is None,
    reason="the conformance suite of MCP is not here: `make conformance` fetches it with npm",
)
async def test_the_gateway_conforms_to_what_it_declares(plane: Apart, world: World, tmp_path: Path) -> None:
    behind, front = (socket.create_server(("127.0.0.1", 0)) for _ in range(2))
    server = conformance_server()
    app = server.streamable_http_app()
    url = f"http://127.0.0.1:{front.getsockname()[1]}/mcp"
    text = f"""
agent = "deployer"
org = "{world.org_id}"
allow = "127.0.0.1"
[servers.suite]
url = "http://127.0.0.1:{behind.getsockname()[1]}/mcp"
prefix = ""
"""

    async with (
        server.session_manager.run(),
        serving(app, behind),
        http_gateway(parse_gateway_file(text, "g.toml"), plane.url, url) as gateway,
    ):

        async def with_key(scope: Any, receive: Any, send: Any) -> None:
            # The suite knows no keys.
            key = (b"authorization", f"Bearer {world.service.secret}".encode())
            await gateway({**scope, "headers": [*scope["headers"], key]}, receive, send)

        async with serving(with_key, front):
            expected = tmp_path / "expected.yml"
            expected.write_text("server:\n" + "".join(f"  - {name}\n" for name in NOT_DECLARED))
            process = await asyncio.create_subprocess_exec(
                "node", str(SUITE), "server", "--url", url, "--expected-failures", str(expected),
                stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT, cwd=tmp_path,
            )  # fmt: skip
            async with asyncio.timeout(120):
                output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()[-6000:]
