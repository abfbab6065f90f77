"""A tool of an MCP server, as everything else sees it: like any other tool."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from cortex_plane.agents.model.tools import (
    Confirmed,
    DidNotHappen,
    Happened,
    InvalidApp,
    OnUncertain,
    ToolVersion,
    is_tool_name,
    provider_name,
)
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.schemas import Unusable
from cortex_plane.worker.tools.arguments import Parsed
from cortex_plane.worker.tools.context import ToolContext
from cortex_plane.worker.tools.mcp.redaction import Redaction
from cortex_plane.worker.tools.mcp.schemas import Schema
from cortex_plane.worker.tools.mcp.servers import McpServer
from cortex_plane.worker.tools.tool import Tool

if TYPE_CHECKING:
    from mcp_types import Tool as Listed

MAX_DESCRIPTION = 4000
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_.]")
HINTS = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")


class Caller(Protocol):
    """Whoever has the connection."""

    async def obstacle(self, tool: RemoteTool) -> str | None: ...

    async def call(self, tool: RemoteTool, values: Mapping[str, Any], key: str) -> Any: ...


class RemoteTool(Tool):
    """What the server hints at is kept and believed by nobody: it has side effects until a steward confirms otherwise."""

    def __init__(
        self,
        caller: Caller,
        server: McpServer,
        *,
        remote_name: str,
        description: str,
        schema: dict[str, Any],
        hints: dict[str, bool],
        implementation: str,
    ) -> None:
        self.name = tool_name(server.name, remote_name)
        self.remote_name = remote_name
        self.description = description
        self.hints = hints
        self.server = server
        self.implementation = implementation
        self.read_only = False
        self.risk = server.risk
        self.timeout_seconds = server.timeout_seconds
        self.on_uncertain: OnUncertain | None = server.on_uncertain
        self._caller = caller
        self._schema = Schema(schema)
        self._declared: RemoteTool = self
        self.digest = self._digest()

    @property
    def is_async(self) -> bool:
        return True

    @property
    def parameters(self) -> dict[str, Any]:
        return self._schema.schema

    def _digest(self) -> str:
        named = {
            "name": self.name,
            "remote_name": self.remote_name,
            "description": self.description,
            "parameters": self.parameters,
            "hints": self.hints,
            "risk": self.risk,
            "timeout_seconds": self.timeout_seconds,
            "on_uncertain": self.on_uncertain,
            "server": self.server.identity,
            "implementation": self.implementation,
        }
        return hashlib.sha256(canonical(named)).hexdigest()

    def version(self, app: str) -> ToolVersion:
        """As it is declared, whatever one org confirmed about it."""
        base = self._declared
        return ToolVersion(
            app=app,
            name=self.name,
            digest=self.digest,
            description=self.description,
            parameters=self.parameters,
            read_only=False,
            risk=base.risk,
            timeout_seconds=self.timeout_seconds,
            on_uncertain=base.on_uncertain,
            server=self.server.name,
            remote_name=self.remote_name,
            implementation=self.implementation,
            hints=self.hints,
        )

    def trusted(self, confirmed: Confirmed | None) -> RemoteTool:
        """The same tool as a steward of one org confirmed it; as it was declared where nobody did."""
        base = self._declared
        if confirmed is None:
            return base
        made = copy.copy(base)
        made.read_only = confirmed.read_only
        if confirmed.read_only:
            made.on_uncertain = None
        elif confirmed.idempotent:
            made.on_uncertain = OnUncertain.RETRY_WITH_KEY
        made.risk = confirmed.risk or base.risk
        return made

    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        return self._schema.parse(arguments)

    async def obstacle(self) -> str | None:
        return await self._caller.obstacle(self)

    async def call(self, values: Mapping[str, Any], context: ToolContext) -> Any:
        return await self._caller.call(self, values, context.idempotency_key)

    async def ask_probe(
        self,
        values: Mapping[str, Any],  # noqa: ARG002
        context: ToolContext,  # noqa: ARG002
    ) -> Happened | DidNotHappen | None:
        raise InvalidApp(f"The tool `{self.name}` has no probe.")


def tool_name(server: str, remote_name: str) -> str:
    """Dotted, lower-case, and told apart from what other servers offer."""
    return f"{server}.{_NOT_IN_NAMES.sub('_', remote_name.lower())}"


def offered(
    caller: Caller, server: McpServer, implementation: str, listed: Iterable[Listed], redaction: Redaction
) -> tuple[list[RemoteTool], list[str]]:
    """The tools that can be offered, and what is said about the others."""
    wanted = [each for each in listed if server.tools is None or each.name in server.tools]
    skipped: list[str] = []
    if server.tools is not None:
        missing = server.tools - {each.name for each in wanted}
        skipped += [f"{name[:100]}: the server does not offer it" for name in sorted(missing)]
    # As models are told them: `a.b` and `a_b` are one name to them.
    names = Counter(provider_name(tool_name(server.name, each.name)) for each in wanted)
    made = []
    for each in wanted:
        name = tool_name(server.name, each.name)
        shared = names[provider_name(name)] > 1
        if shared or not is_tool_name(name):
            why = "other tools would have the same name" if shared else "it cannot be named"
            skipped.append(f"{each.name[:100]}: {why}")
            continue
        try:
            made.append(_made(caller, server, implementation, each, redaction))
        except Unusable as error:
            skipped.append(f"{each.name[:100]}: {error}")
    return made, skipped


def _made(
    caller: Caller, server: McpServer, implementation: str, listed: Listed, redaction: Redaction
) -> RemoteTool:
    given = listed.annotations
    hints = {name: value for name in HINTS if given and (value := getattr(given, name, None)) is not None}
    return RemoteTool(
        caller,
        server,
        remote_name=listed.name,
        description=_described(redaction.text(listed.description or "")),
        schema=redaction.value(listed.input_schema),
        hints=hints,
        implementation=redaction.text(implementation),
    )


def _described(text: str) -> str:
    kept = text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")
    return kept if len(kept) <= MAX_DESCRIPTION else f"{kept[:MAX_DESCRIPTION]}…"


def remembered(caller: Caller, server: McpServer, versions: Sequence[ToolVersion]) -> list[RemoteTool]:
    """Tools as they were when a worker last heard of them: what waits for them is not lost while the server is down."""
    made = []
    for version in versions:
        try:
            tool = RemoteTool(
                caller,
                server,
                remote_name=version.remote_name or "",
                description=version.description,
                schema=version.parameters,
                hints=version.hints or {},
                implementation=version.implementation or "",
            )
        except Unusable:
            continue
        # Declared otherwise since: then it is another tool, which the server itself must show first.
        if tool.digest == version.digest:
            made.append(tool)
    return made
