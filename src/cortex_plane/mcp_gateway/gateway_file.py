"""The gateway's file: which MCP servers it fronts, what is known of their tools, and for which agent it asks the plane."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Literal
from uuid import UUID

from pydantic import BaseModel, ConfigDict, Field

from cortex_plane.agents.model.tools import MAX_TIMEOUT, MIN_TIMEOUT, InvalidApp
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.toml_files import TomlKind
from cortex_plane.mcp_client.servers import McpServer, Secret, declare_server

WAIT_SECONDS = 45.0
"""Clients give up after 60 s, most of them."""
PROGRESS_WAIT_SECONDS = 240.0
"""Where the client's clock begins anew with each progress notification. Some have a hard limit of five minutes."""
_STRICT = ConfigDict(extra="forbid", strict=True)
Seconds = Annotated[float, Field(ge=MIN_TIMEOUT, le=MAX_TIMEOUT, allow_inf_nan=False)]
OnLoss = Literal["ask_human", "retry_with_key", "fail"]


class ToolOverride(BaseModel):
    """What the operator knows of one tool. Without it nothing is believed of what its server hints at."""

    model_config = _STRICT
    name: str | None = None
    """As policies and approvals name it, instead of `<server>.<tool>`."""
    risk: Literal["low", "medium", "high", "critical"] | None = None
    read_only: bool = False
    on_uncertain: OnLoss | None = None
    timeout: Seconds | None = None


class _EnvironmentHeader(BaseModel):
    model_config = _STRICT
    env: str
    prefix: str = ""


class _Server(BaseModel):
    model_config = _STRICT
    command: list[str] | None = None
    cwd: str | None = None
    env: list[str] = Field(default_factory=list)
    url: str | None = None
    headers: dict[str, _EnvironmentHeader | str] = Field(default_factory=dict)
    prefix: Annotated[str, Field(pattern=r"^([a-z][a-z0-9_]{0,30})?$")] | None = None
    timeout: Seconds = 30.0
    only: list[str] | None = None
    tools: dict[str, ToolOverride] = Field(default_factory=dict)


class _Person(BaseModel):
    model_config = _STRICT
    key_env: Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class OAuthSettings(BaseModel):
    """The authorization server whose tokens the gateway takes over HTTP."""

    model_config = _STRICT
    issuer: Annotated[str, Field(pattern=r"^https?://[^\s?#]+$")]
    jwks: str
    """The address of its public keys, or a file that has them."""
    people: Annotated[dict[str, _Person], Field(min_length=1)]
    """By the subject of a token: the variable that has the plane's key for that person."""


class _File(BaseModel):
    model_config = _STRICT
    agent: Annotated[str, Field(min_length=1, max_length=100)]
    org: Annotated[str, Field(pattern=r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$")] | None = None
    session: Annotated[str, Field(pattern=r"^[!-~]{1,100}$")] = "mcp"
    wait: Annotated[float, Field(ge=0, le=3600)] = WAIT_SECONDS
    wait_with_progress: Annotated[float, Field(ge=0, le=86_400)] = PROGRESS_WAIT_SECONDS
    elicitation: bool = True
    url: Annotated[str, Field(pattern=r"^https?://[^\s?#]+$")] | None = None
    oauth: OAuthSettings | None = None
    allow: str = ""
    """Hosts and ranges in private networks that HTTP servers may have."""
    servers: Annotated[dict[str, _Server], Field(min_length=1, max_length=100)]


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayServer:
    server: McpServer
    prefix: str
    """Of the names that clients see; with an empty one they are the server's own."""
    overrides: Mapping[str, ToolOverride] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayConfig:
    agent: str
    """As whose calls they are authorised."""
    org: UUID | None
    """Only keys of this org are taken over HTTP: in another org other people would decide about the same servers."""
    session: str
    """With it the names of sessions begin: gateways that have the same one share them."""
    wait: float
    wait_with_progress: float
    elicitation: bool
    url: str | None
    """Of the gateway itself, as clients reach it over HTTP: tokens must be made for it."""
    oauth: OAuthSettings | None
    servers: tuple[GatewayServer, ...]


_KIND = TomlKind(noun="The gateway's file", code="invalid_gateway_file", page="docs/guides/mcp-gateway.md")


def read_gateway_file(path: Path) -> GatewayConfig:
    return parse_gateway_file(_KIND.read_text(path), path.name)


def parse_gateway_file(text: str, name: str) -> GatewayConfig:
    """Raises `InvalidInput` with the line of the first fault."""
    document = _KIND.parse(text, name, _File)
    try:
        allowed = Allowed.parse(document.allow)
    except ValueError as error:
        raise _KIND.fault(text, name, ("allow",), str(error)) from None
    servers: list[GatewayServer] = []
    for key, entry in document.servers.items():
        try:
            servers.append(_declare(key, entry, allowed))
        except InvalidApp as error:
            raise _KIND.fault(text, name, ("servers", key), f"{error.message} {error.hint}") from None
    return GatewayConfig(
        agent=document.agent,
        org=None if document.org is None else UUID(document.org),
        session=document.session,
        wait=document.wait,
        wait_with_progress=max(document.wait, document.wait_with_progress),
        elicitation=document.elicitation,
        url=document.url,
        oauth=document.oauth,
        servers=tuple(servers),
    )


def _declare(name: str, server: _Server, allowed: Allowed) -> GatewayServer:
    prefix = name if server.prefix is None else server.prefix
    for part in (name, prefix):
        if "__" in part or part.endswith("_"):
            raise InvalidApp(
                f"`{part}` could be mistaken for another server's name with a part of a tool's.",
                hint="Use names and prefixes without `__`, and without `_` at the end.",
            )
    headers = {
        header: value if isinstance(value, str) else Secret(value.env, value.prefix)
        for header, value in server.headers.items()
    }
    declaration = declare_server(
        name,
        command=server.command,
        url=server.url,
        env=None,
        headers=headers or None,
        secrets=server.env,
        timeout=server.timeout,
        tools=server.only,
        risk=None,
        on_uncertain="ask_human",
        cwd=server.cwd,
    )
    return GatewayServer(server=replace(declaration, reach=allowed), prefix=prefix, overrides=server.tools)


def risk_of(override: ToolOverride) -> Risk | None:
    return None if override.risk is None else Risk(override.risk)
