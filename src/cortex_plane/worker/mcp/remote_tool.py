"""A tool of an MCP server, with the interface of any other tool: its bounded schema, its calls and its results."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol
from uuid import UUID

import orjson

from cortex_plane.agents.model.completions import provider_name
from cortex_plane.agents.model.tools import (
    Confirmed,
    InvalidArguments,
    OnUncertain,
    ToolError,
    ToolVersion,
    is_tool_name,
)
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.mcp_client.servers import McpServer, Redaction, map_texts, strict_schema
from cortex_plane.worker.calls import storable
from cortex_plane.worker.tools.tool import Parsed, Tool, ToolContext, exact_bytes, invalid_arguments

if TYPE_CHECKING:
    from mcp_types import CallToolResult
    from mcp_types import Tool as Listed


MAX_DESCRIPTION = 4000
_NOT_IN_NAMES = re.compile(r"[^a-z0-9_.]")
HINTS = ("read_only_hint", "destructive_hint", "idempotent_hint", "open_world_hint")


class Caller(Protocol):
    """Whoever has the connection."""

    async def obstacle(self, tool: RemoteTool) -> str | None: ...

    async def call(
        self, tool: RemoteTool, values: Mapping[str, Any], key: str, last_moment: float | None = None
    ) -> Any: ...

    def is_under_way(self, invocation_id: UUID) -> bool: ...


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
        self.remote_name, self.description, self.hints = remote_name, description, hints
        self.server, self.implementation = server, implementation
        self.read_only = False
        self.risk, self.declares_risk = server.risk, server.declares_risk
        self.timeout_seconds = server.timeout_seconds
        self.on_uncertain: OnUncertain | None = server.on_uncertain
        self._probe = None
        self._caller = caller
        self.is_async = True
        self.parameters = strict_schema(schema)
        self._validator = compiled(self.parameters)
        self._as_declared: RemoteTool = self
        self._declaration: dict[str, Any] = {
            "name": self.name, "remote_name": remote_name, "description": description, "parameters": self.parameters,
            "hints": hints, "risk": self.risk, "timeout_seconds": self.timeout_seconds,
            "on_uncertain": self.on_uncertain, "implementation": implementation,
        }  # fmt: skip
        self.digest = hashlib.sha256(canonical({**self._declaration, "server": server.identity})).hexdigest()

    def version(self, app: str) -> ToolVersion:
        """As it is declared, whatever one org confirmed about it."""
        return ToolVersion(
            app=app, digest=self.digest, read_only=False, server=self.server.name, declares_risk=self.server.declares_risk,
            **self._declaration,
        )  # fmt: skip

    def trusted(self, confirmation: Confirmed | None) -> RemoteTool:
        """The same tool as a steward of one org confirmed it; as it was declared where nobody did."""
        base = self._as_declared
        if confirmation is None:
            return base
        tool = copy.copy(base)
        tool.read_only = confirmation.read_only
        if confirmation.read_only:
            tool.on_uncertain = None
        elif confirmation.idempotent:
            tool.on_uncertain = OnUncertain.RETRY_WITH_KEY
        if confirmation.risk is not None:
            tool.risk, tool.declares_risk = confirmation.risk, True
        return tool

    def parse(self, arguments: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(arguments)
        values: dict[str, Any] = orjson.loads(exact)
        try:
            problems = faults(self._validator, values)
        except Unusable as error:  # a pattern that takes too long
            raise InvalidArguments(f"It cannot be called: {error}.") from None
        if problems:
            raise invalid_arguments(problems)
        return Parsed.of(values, exact)

    async def obstacle(self) -> str | None:
        return await self._caller.obstacle(self)

    async def call(self, values: Mapping[str, Any], context: ToolContext) -> Any:
        return await self._caller.call(self, values, context.idempotency_key)

    async def send(self, values: Mapping[str, Any], context: ToolContext, last_moment: float) -> Any:
        return await self._caller.call(self, values, context.idempotency_key, last_moment)

    def is_under_way(self, invocation_id: UUID) -> bool:
        return self._caller.is_under_way(invocation_id)


def judged_tool(tool: Tool, digest: str, read_only: bool) -> RemoteTool:
    """The version that somebody elsewhere judged, as a steward confirmed it there. Raises ``ToolError`` where the server has changed it."""
    if not isinstance(tool, RemoteTool) or tool.digest != digest:
        raise tool_changed(tool.name)
    return tool.trusted(Confirmed(read_only=True)) if read_only else tool


def tool_changed(name: str) -> ToolError:
    return ToolError(
        f"`{name}` was changed by its server since this call was made; it was not sent.",
        hint="Call it again: it is looked at as it is now.",
    )


def tool_name(server: str, remote_name: str) -> str:
    """Dotted, lower-case, and told apart from what other servers offer."""
    return f"{server}.{_NOT_IN_NAMES.sub('_', remote_name.lower())}"


def usable_tools(
    caller: Caller, server: McpServer, implementation: str, definitions: Iterable[Listed], redaction: Redaction
) -> tuple[list[RemoteTool], list[str]]:
    """The tools that can be offered, and why the others cannot."""
    selection = [definition for definition in definitions if server.tools is None or definition.name in server.tools]
    reasons: list[str] = []
    if server.tools is not None:
        missing = server.tools - {definition.name for definition in selection}
        reasons += [f"{name[:100]}: the server does not offer it" for name in sorted(missing)]
    # As models are told them: `a.b` and `a_b` are one name to them.
    names = Counter(provider_name(tool_name(server.name, definition.name)) for definition in selection)
    tools = []
    for definition in selection:
        name = tool_name(server.name, definition.name)
        shared = names[provider_name(name)] > 1
        if shared or not is_tool_name(name):
            why = "other tools would have the same name" if shared else "it cannot be named"
            reasons.append(f"{definition.name[:100]}: {why}")
            continue
        try:
            tools.append(_remote_tool(caller, server, implementation, definition, redaction))
        except Unusable as error:
            reasons.append(f"{definition.name[:100]}: {error}")
    return tools, reasons


def _remote_tool(
    caller: Caller, server: McpServer, implementation: str, definition: Listed, redaction: Redaction
) -> RemoteTool:
    annotations = definition.annotations
    hints = {name: value for name in HINTS if annotations and (value := getattr(annotations, name, None)) is not None}
    description = storable(redaction.text(definition.description or ""))
    return RemoteTool(
        caller,
        server,
        remote_name=definition.name,
        description=description if len(description) <= MAX_DESCRIPTION else f"{description[:MAX_DESCRIPTION]}…",
        schema=map_texts(definition.input_schema, redaction.text),
        hints=hints,
        implementation=redaction.text(implementation),
    )


def recall_tools(caller: Caller, server: McpServer, versions: Sequence[ToolVersion]) -> list[RemoteTool]:
    """Tools as they were when a worker last heard of them: what waits for them is not lost while the server is down."""
    tools = []
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
            tools.append(tool)
    return tools


MAX_BLOCKS = 200
MAX_DATA = 512 * 1024
"""Characters of an image or a blob in base64; larger ones are named and left out."""
MAX_ERROR = 2000


def as_json(result: CallToolResult, redaction: Redaction) -> Any:
    """Structured content as it is; one text as a text; anything else as a list of blocks."""
    blocks = [_block(block) for block in result.content[:MAX_BLOCKS]]
    if len(result.content) > MAX_BLOCKS:
        blocks.append({"type": "left_out", "blocks": len(result.content) - MAX_BLOCKS})
    content = result.structured_content
    if content is not None:
        other = [block for block in blocks if block["type"] != "text"]
        value: Any = {"structured": content, "content": other} if other else content
    elif len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        value = blocks[0]["text"]
    else:
        value = blocks
    # Texts that the database cannot keep are made so that it can; it happened, whatever they say.
    return map_texts(value, lambda text: redaction.text(storable(text)))


def error_text(result: CallToolResult, redaction: Redaction) -> str:
    texts = [block.text for block in result.content[:MAX_BLOCKS] if block.type == "text"]
    return redaction.text(storable(" ".join(texts)).strip() or "it says no more")[:MAX_ERROR]


def _block(block: Any) -> dict[str, Any]:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type in ("image", "audio"):
        return {"type": block.type, "mime_type": block.mime_type, **_data(block.data)}
    if block.type == "resource_link":
        # A name for something elsewhere. Whether anybody looks there is not ours to say.
        link = {"uri": str(block.uri), "name": block.name, "mime_type": block.mime_type}
        return {"type": "resource_link", **{key: value for key, value in link.items() if value is not None}}
    if block.type == "resource":
        resource = block.resource
        content = {"text": resource.text} if hasattr(resource, "text") else _data(resource.blob)
        return {"type": "resource", "uri": str(resource.uri), "mime_type": resource.mime_type, **content}
    return {"type": "unknown"}


def _data(data: str) -> dict[str, Any]:
    if len(data) > MAX_DATA:
        return {"left_out": f"{len(data)} characters of base64, more than {MAX_DATA}"}
    return {"data": data}
