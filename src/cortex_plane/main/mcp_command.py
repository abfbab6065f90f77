"""`cortex mcp`: the gateway in a process of its own, over standard input and output or over HTTP."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from cortex_plane.cli.plane import importing
from cortex_plane.kernel.errors import extra

mcp_app = typer.Typer()


@mcp_app.command("mcp")
def serve_mcp(
    file: Annotated[Path, Option(help="Which servers it fronts, and for which agent.")] = Path("cortex-mcp.toml"),
    http: Annotated[
        str | None, Option(help="Serve `/mcp` at this HOST:PORT. Without it one client is served over stdio.")
    ] = None,
) -> None:
    """Front MCP servers: every call of a tool passes the plane first."""
    with importing(), extra("mcp"):
        from cortex_plane.client import Client
        from cortex_plane.main.settings import configure_logs
        from cortex_plane.main.sockets import address, listen_at
        from cortex_plane.mcp_gateway import serving
        from cortex_plane.mcp_gateway.gateway_file import read_gateway_file

    config = read_gateway_file(file)
    # Standard output belongs to the protocol: logs go to stderr.
    configure_logs(os.environ.get("CORTEX_LOG_LEVEL", "warning"), as_json=False)
    if http is not None:
        listener = listen_at(http)
        url = config.url or f"{address(listener)}/mcp"
        typer.echo(f"serving on {url}")
        with listener:
            asyncio.run(serving.serve_http(config, Client.without_key().url, listener, url))
        return

    async def serve() -> None:
        async with Client.here() as plane:
            await serving.serve_stdio(config, plane)

    asyncio.run(serve())
