"""The servers behind the gateway, and what they offer together: tools, resources and prompts under names of the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import structlog

from cortex_plane.agents.model.tool_names import plane_name
from cortex_plane.agents.model.tools import OnUncertain, ToolError, is_tool_name
from cortex_plane.kernel.globs import Glob
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.mcp_client.connection import McpLink, OnProgress, SessionOver, list_tools
from cortex_plane.mcp_client.servers import map_texts, strict_schema
from cortex_plane.mcp_gateway.gateway_file import GatewayServer, ToolOverride

if TYPE_CHECKING:
    import mcp_types as types
    from jsonschema_rs import Validator
    from mcp import Client
    from pydantic import BaseModel

log = structlog.get_logger()

WAIT_SECONDS = 5.0
"""How long a request waits for a server that is on its way back."""
SETTLE_SECONDS = 10.0
"""How long the first list waits for servers that are still starting."""
MAX_NAME = 64
"""Of a tool or prompt, as clients see it. Models of some providers take no longer one."""
MAX_ITEMS = 1000
MAX_TEMPLATE = 2000
MAX_PLACEHOLDERS = 32
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]")
_PLACEHOLDER = re.compile(r"\{[^{}]*\}")
M = TypeVar("M", bound="BaseModel")
PLAIN = ToolOverride()


def client_name(prefix: str, remote_name: str) -> str:
    """The same pair always gives the same name."""
    whole = f"{prefix}__{remote_name}" if prefix else remote_name
    name = _NOT_IN_NAMES.sub("_", whole)
    if name == whole and len(name) <= MAX_NAME:
        return name
    digest = hashlib.sha256(remote_name.encode("utf-8", "replace")).hexdigest()[:8]
    return f"{name[: MAX_NAME - 9]}_{digest}"


@dataclass(frozen=True, kw_only=True, slots=True)
class GatewayTool:
    upstream: Upstream
    listed: types.Tool
    """As its server describes it, under the name of the gateway."""
    remote_name: str
    plane_name: str
    digest: str
    """Of what makes it this tool of this server and no other, beyond its schema and its name for policies."""
    parameters: dict[str, Any]
    validator: Validator
    override: ToolOverride
    timeout: float

    @property
    def declaration(self) -> dict[str, Any]:
        """Its schema, as the plane gets it. With the digest, what people approve for it counts for no other tool."""
        return {**self.parameters, "$comment": f"tool {self.digest}"}

    @property
    def on_uncertain(self) -> OnUncertain:
        return OnUncertain(self.override.on_uncertain or OnUncertain.ASK_HUMAN)

    def argument_faults(self, arguments: dict[str, Any]) -> list[str]:
        try:
            return faults(self.validator, arguments)
        except Unusable as error:  # a pattern that takes too long
            return [str(error)]

    async def call(self, arguments: Mapping[str, Any], key: str, on_progress: OnProgress) -> types.CallToolResult:
        """Raises ``ToolError`` where nothing was begun, and ``UncertainOutcome`` where nobody knows."""
        link = self.upstream.link

        async def report(progress: float, total: float | None, message: str | None) -> None:
            await on_progress(progress, total, None if message is None else link.redaction.text(message))

        await link.wait_until_up(min(WAIT_SECONDS, self.timeout / 2))
        try:
            result = await link.request(self.plane_name, self.remote_name, arguments, key, report)
        except SessionOver:
            # It was restarted elsewhere and began nothing: the same call goes to the new session, once.
            await link.wait_until_up(min(WAIT_SECONDS, self.timeout / 2))
            result = await link.request(self.plane_name, self.remote_name, arguments, key, report)
        if not hasattr(result, "content"):
            raise ToolError(
                f"`{self.plane_name}` did not finish: it asks for input, which the gateway does not pass on."
            )
        answer: types.CallToolResult = self.upstream.redacted(result)
        return answer


class Upstream:
    """One server, and what it offers now. While it is down, what it offered last stays listed."""

    def __init__(self, config: GatewayServer, on_change: Callable[[str], None]) -> None:
        self.config = config
        self.link = McpLink(config.server, self._read, lambda: None)
        self.tools: list[types.Tool] = []
        self.resources: list[types.Resource] = []
        self.templates: list[types.ResourceTemplate] = []
        self.prompts: list[types.Prompt] = []
        self._on_change = on_change

    @property
    def name(self) -> str:
        return self.config.server.name

    @property
    def identity(self) -> dict[str, Any]:
        """What makes it this server and no other. A program is also named by its directory."""
        server = self.config.server
        return {**server.identity, "cwd": server.cwd}

    @property
    def label(self) -> str:
        """Short, and another one for each server."""
        return f"{self.name}-{_digest(self.identity)[:16]}"

    def redacted(self, value: M) -> M:
        """The same message without the secrets that the gateway gave the server."""
        if self.link.redaction.is_empty:
            return value
        document = value.model_dump(mode="json", by_alias=True, exclude_none=True)
        return type(value).model_validate(map_texts(document, self.link.redaction.text))

    def offers_resource(self, uri: str) -> bool:
        return any(str(resource.uri) == uri for resource in self.resources) or any(
            fits_template(template.uri_template, uri) for template in self.templates
        )

    async def _read(self, client: Client) -> None:
        capabilities = client.server_capabilities
        tools = await list_tools(client) if capabilities.tools else []
        only = self.config.server.tools
        tools = [self.redacted(tool) for tool in tools if only is None or tool.name in only]
        resources: list[types.Resource] = []
        templates: list[types.ResourceTemplate] = []
        prompts: list[types.Prompt] = []
        if capabilities.resources:
            resources = await _pages(lambda cursor: client.list_resources(cursor=cursor), "resources")
            templates = await _pages(lambda cursor: client.list_resource_templates(cursor=cursor), "resource_templates")
        if capabilities.prompts:
            prompts = await _pages(lambda cursor: client.list_prompts(cursor=cursor), "prompts")
        before = (self.tools, self.resources, self.templates, self.prompts)
        after = (
            tools,
            [*map(self.redacted, resources)],
            [*map(self.redacted, templates)],
            [*map(self.redacted, prompts)],
        )
        if before == after:
            return
        if any(before):
            self.link.count_change()
        self.tools, self.resources, self.templates, self.prompts = after
        kinds = [("tools", 0), ("resources", 1), ("resources", 2), ("prompts", 3)]
        for kind in dict.fromkeys(kind for kind, place in kinds if before[place] != after[place]):
            self._on_change(kind)


async def _pages(fetch: Callable[[str | None], Awaitable[Any]], name: str) -> list[Any]:
    items: list[Any] = []
    cursor: str | None = None
    while len(items) < MAX_ITEMS:
        page = await fetch(cursor)
        items += getattr(page, name)
        cursor = page.next_cursor
        if not cursor:
            break
    return items[:MAX_ITEMS]


class Upstreams:
    """All servers of a gateway. The fault of one does not touch the others."""

    def __init__(self, servers: Sequence[GatewayServer]) -> None:
        self.all = [Upstream(server, self._change) for server in servers]
        self.on_change: Callable[[str], None] = lambda _: None
        self.tools: dict[str, GatewayTool] = {}
        """By the name that clients see, in a stable order."""

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Raises ``SetupError`` where a secret is missing. A server that does not come up is tried on."""
        try:
            for upstream in self.all:
                upstream.link.start()
            yield
        finally:
            await asyncio.gather(*(upstream.link.stop("the gateway stops") for upstream in self.all))

    async def settle(self) -> None:
        """Wait until each server is up, or known not to be."""
        waiting = [asyncio.create_task(upstream.link.settled.wait()) for upstream in self.all]
        _, late = await asyncio.wait(waiting, timeout=SETTLE_SECONDS)
        for task in late:
            task.cancel()

    def _change(self, kind: str) -> None:
        if kind == "tools":
            self.tools = _merge(self.all)
        self.on_change(kind)

    def prompt(self, name: str) -> tuple[Upstream, types.Prompt] | None:
        for upstream in self.all:
            for prompt in upstream.prompts:
                if client_name(upstream.config.prefix, prompt.name) == name:
                    return upstream, prompt
        return None

    def resource_owner(self, uri: str) -> Upstream | None:
        """The one server that lists it or has a template for it; none where several do: one could answer in the other's place."""
        owners = [upstream for upstream in self.all if upstream.offers_resource(uri)]
        if len(owners) > 1:
            log.warning("mcp resource refused", uri=uri, servers=[owner.name for owner in owners])
        return owners[0] if len(owners) == 1 else None


def fits_template(template: str, uri: str) -> bool:
    """Whether the URI has the literal parts of the template, in their order. No regular expression: servers write templates, and clients
    URIs."""
    parts = _PLACEHOLDER.split(template) if len(template) <= MAX_TEMPLATE else []
    if not 1 <= len(parts) <= MAX_PLACEHOLDERS + 1:
        return False
    middles = tuple(part for part in parts[1:-1] if part)
    return Glob(parts[0], middles, parts[-1] if len(parts) > 1 else "", exact=len(parts) == 1).matches(uri)


def _merge(upstreams: Sequence[Upstream]) -> dict[str, GatewayTool]:
    """A name that two tools of one server would share is given to neither: policies could not tell them apart. Of two servers the first
    in the file has it: no other can take it away."""
    pairs = [(upstream, listed) for upstream in upstreams for listed in upstream.tools]
    names = {id(listed): _names(upstream.config, listed.name) for upstream, listed in pairs}
    shown_names = Counter((id(upstream), names[id(listed)][0]) for upstream, listed in pairs)
    plane_names = Counter((id(upstream), names[id(listed)][1]) for upstream, listed in pairs)
    shown_owner: dict[str, Upstream] = {}
    plane_owner: dict[str, Upstream] = {}
    tools: dict[str, GatewayTool] = {}
    for upstream, listed in pairs:
        override = upstream.config.overrides.get(listed.name, PLAIN)
        shown, plane = names[id(listed)]
        try:
            owners = shown_owner.setdefault(shown, upstream), plane_owner.setdefault(plane, upstream)
            is_shared = shown_names[id(upstream), shown] > 1 or plane_names[id(upstream), plane] > 1
            if is_shared or owners != (upstream, upstream):
                raise Unusable("another tool would have the same name")
            if not is_tool_name(plane):
                raise Unusable(f"`{plane[:100]}` is not a name of a tool")
            parameters = strict_schema(listed.input_schema)
            validator = compiled(parameters)
        except Unusable as error:
            log.warning("mcp tool skipped", server=upstream.name, tool=listed.name[:100], reason=str(error))
            continue
        tools[shown] = GatewayTool(
            upstream=upstream,
            listed=listed.model_copy(update={"name": shown}),
            remote_name=listed.name,
            plane_name=plane,
            digest=_digest([upstream.identity, plane, listed.name, listed.description]),
            parameters=parameters,
            validator=validator,
            override=override,
            timeout=override.timeout or upstream.config.server.timeout_seconds,
        )
    return tools


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _names(config: GatewayServer, remote_name: str) -> tuple[str, str]:
    override = config.overrides.get(remote_name, PLAIN)
    # Whoever wrote the gateway's file chose the server's name, so it needs no namespace of its own.
    return client_name(config.prefix, remote_name), override.name or plane_name(f"{config.server.name}/{remote_name}")
