"""The two ways to serve a gateway: to one client over standard input and output, and to many over streamable HTTP."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import uvicorn
from mcp.server.auth.middleware.auth_context import AuthContextMiddleware
from mcp.server.auth.middleware.bearer_auth import AuthorizationContext, BearerAuthBackend, RequireAuthMiddleware
from mcp.server.auth.routes import build_resource_metadata_url
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http import StreamableHTTPServerTransport
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp_types import INTERNAL_ERROR
from pydantic import AnyHttpUrl
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.authentication import AuthenticationMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.mcp_gateway.callers import KeyCallers
from cortex_plane.mcp_gateway.gateway import Gateway
from cortex_plane.mcp_gateway.gateway_calls import GatewayCaller
from cortex_plane.mcp_gateway.gateway_file import GatewayConfig
from cortex_plane.mcp_gateway.upstreams import Upstreams

if TYPE_CHECKING:
    from cortex_plane.client import Client

MAX_BODY_BYTES = 1024 * 1024
MAX_SESSIONS = 1000
SESSIONS_OF_A_CALLER = 100
"""So that one key leaves room for those of others."""
GRACE_SECONDS = 5


async def serve_stdio(config: GatewayConfig, plane: Client) -> None:
    """Until the client closes the input. The plane's key is the environment's, so all calls are one person's."""
    caller = GatewayCaller("stdio", plane)

    async def find(_: Any) -> GatewayCaller:
        return caller

    gateway = Gateway(config, Upstreams(config.servers), find)
    async with gateway.running(), stdio_server() as (reader, writer):
        await gateway.server.run(reader, writer, gateway.server.create_initialization_options())


@contextlib.asynccontextmanager
async def http_gateway(config: GatewayConfig, plane_url: str, url: str) -> AsyncIterator[Starlette]:
    """The application, while its servers run. ``url``: of the gateway, as its clients reach it. Raises ``InvalidInput`` where
    the file names no org."""
    if config.org is None:
        raise InvalidInput(
            "The gateway's file names no `org`, so over HTTP it would take keys of every org of the plane.",
            code="invalid_gateway_file",
            hint='Write `org = "…"` with the id of your org, which `cortex org show` prints.',
        )
    callers = KeyCallers(plane_url, url, config.org, config.oauth)
    gateway = Gateway(config, Upstreams(config.servers), callers.find)
    try:
        async with gateway.running():
            app = _application(gateway, callers, config, url)
            async with app.state.manager.run():
                yield app
    finally:
        await callers.close()


class _ShareUsedUp(Exception):
    """A caller has all sessions open that one may have."""


class _SessionManager(StreamableHTTPSessionManager):
    """Refuses a session to a caller who has a whole share of them open. The SDK counts all callers together."""

    def _admit_session(self, requestor: AuthorizationContext | None) -> StreamableHTTPServerTransport | None:
        owners = [owner["client_id"] for owner in self._session_owners.values()]
        if requestor is not None and owners.count(requestor["client_id"]) >= SESSIONS_OF_A_CALLER:
            raise _ShareUsedUp
        return super()._admit_session(requestor)

    async def _handle_stateful_request(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super()._handle_stateful_request(scope, receive, send)
        except _ShareUsedUp:
            message = (
                f"Your key has {SESSIONS_OF_A_CALLER} sessions open, as many as one key may have."
                " End some with DELETE, or wait until they expire."
            )
            error = {"jsonrpc": "2.0", "id": None, "error": {"code": INTERNAL_ERROR, "message": message}}
            await JSONResponse(error, 429)(scope, receive, send)


def _application(gateway: Gateway, callers: KeyCallers, config: GatewayConfig, url: str) -> Starlette:
    parts = urlsplit(url)
    manager = _SessionManager(
        app=gateway.server,
        max_request_body_size=MAX_BODY_BYTES,
        max_sessions=MAX_SESSIONS,
        # A page of somebody else's must not reach a gateway on this machine through a browser.
        security_settings=TransportSecuritySettings(
            allowed_hosts=[parts.netloc], allowed_origins=[f"{parts.scheme}://{parts.netloc}"]
        ),
    )
    document: dict[str, Any] = {
        "resource": url,
        "resource_name": "Cortex Plane MCP gateway",
        "bearer_methods_supported": ["header"],
    }
    if config.oauth is not None:
        document["authorization_servers"] = [config.oauth.issuer]

    async def describe(_: Request) -> JSONResponse:
        return JSONResponse(document, headers={"Access-Control-Allow-Origin": "*"})

    metadata_url = build_resource_metadata_url(AnyHttpUrl(url))
    endpoint = RequireAuthMiddleware(StreamableHTTPASGIApp(manager), [], metadata_url)
    backend = BearerAuthBackend(callers, resource_server_url=AnyHttpUrl(url))
    app = Starlette(
        routes=[
            Route(parts.path or "/", endpoint=endpoint),
            Route(urlsplit(str(metadata_url)).path, endpoint=describe, methods=["GET"]),
        ],
        middleware=[Middleware(AuthenticationMiddleware, backend=backend), Middleware(AuthContextMiddleware)],
    )
    app.state.manager = manager
    return app


async def serve_http(config: GatewayConfig, plane_url: str, listener: socket.socket, url: str) -> None:
    """Until SIGINT or SIGTERM."""
    async with http_gateway(config, plane_url, url) as app:
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=GRACE_SECONDS,
            )
        )
        await server.serve(sockets=[listener])
