"""A tool of an MCP server, with the interface of any other tool: its bounded schema, its calls and its results."""

from __future__ import annotations

import copy
import hashlib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import orjson

from cortex_plane.agents.model.tools import (
    Confirmed,
    DidNotHappen,
    Happened,
    InvalidApp,
    InvalidArguments,
    OnUncertain,
    ToolVersion,
    is_tool_name,
    provider_name,
)
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.schemas import Unusable, check, compiled, faults
from cortex_plane.worker.mcp.servers import McpServer, Redaction
from cortex_plane.worker.tools.arguments import Parsed, ToolContext, exact_bytes
from cortex_plane.worker.tools.tool import Tool

if TYPE_CHECKING:
    from mcp_types import CallToolResult
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


MAX_BLOCKS = 200
MAX_DATA = 512 * 1024
"""Characters of an image or a blob in base64; larger ones are named and left out."""
MAX_ERROR = 2000


def as_json(result: CallToolResult, redaction: Redaction) -> Any:
    """Structured content as it is; one text as a text; anything else as a list of blocks."""
    blocks = [_block(each) for each in result.content[:MAX_BLOCKS]]
    if len(result.content) > MAX_BLOCKS:
        blocks.append({"type": "left_out", "blocks": len(result.content) - MAX_BLOCKS})
    structured = result.structured_content
    if structured is not None:
        other = [block for block in blocks if block["type"] != "text"]
        made: Any = {"structured": structured, "content": other} if other else structured
    elif len(blocks) == 1 and set(blocks[0]) == {"type", "text"}:
        made = blocks[0]["text"]
    else:
        made = blocks
    return redaction.value(_clean(made))


def error_text(result: CallToolResult, redaction: Redaction) -> str:
    texts = [each.text for each in result.content[:MAX_BLOCKS] if each.type == "text"]
    said = _text(" ".join(texts)).strip() or "it says no more"
    return redaction.text(said)[:MAX_ERROR]


def _block(block: Any) -> dict[str, Any]:
    if block.type == "text":
        return {"type": "text", "text": block.text}
    if block.type in ("image", "audio"):
        return {"type": block.type, "mime_type": block.mime_type, **_data(block.data)}
    if block.type == "resource_link":
        # A name for something elsewhere. Whether anybody looks there is not ours to say.
        linked = {"uri": str(block.uri), "name": block.name, "mime_type": block.mime_type}
        return {"type": "resource_link", **{key: each for key, each in linked.items() if each is not None}}
    if block.type == "resource":
        held = block.resource
        kept = {"text": held.text} if hasattr(held, "text") else _data(held.blob)
        return {"type": "resource", "uri": str(held.uri), "mime_type": held.mime_type, **kept}
    return {"type": "unknown"}


def _data(data: str) -> dict[str, Any]:
    if len(data) > MAX_DATA:
        return {"left_out": f"{len(data)} characters of base64, more than {MAX_DATA}"}
    return {"data": data}


def _clean(value: Any) -> Any:
    """Texts that the database cannot keep are made so that it can; it happened, whatever they say."""
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return [_clean(each) for each in value]
    if isinstance(value, dict):
        return {_text(str(key)): _clean(each) for key, each in value.items()}
    return value


def _text(text: str) -> str:
    return text.encode("utf-8", "replace").decode().replace("\x00", "\ufffd")


_SHOWN_FAULTS = 10
_OPEN = (
    "additionalProperties",
    "patternProperties",
    "unevaluatedProperties",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "if",
)


class Schema:
    def __init__(self, given: dict[str, Any]) -> None:
        self.schema = _strict(given)
        self._validator = compiled(self.schema)

    def parse(self, given: dict[str, Any] | str) -> Parsed:
        exact = exact_bytes(given)
        values: dict[str, Any] = orjson.loads(exact)
        try:
            found = faults(self._validator, values)
        except Unusable as error:  # a pattern that takes too long
            raise InvalidArguments(f"It cannot be called: {error}.") from None
        if found:
            more = f"; and {len(found) - _SHOWN_FAULTS} more faults" if len(found) > _SHOWN_FAULTS else ""
            raise InvalidArguments(f"The arguments are not valid: {'; '.join(found[:_SHOWN_FAULTS])}{more}.")
        return Parsed(values=values, canonical=exact, digest=hashlib.sha256(exact).hexdigest())


def _strict(given: dict[str, Any]) -> dict[str, Any]:
    """What the server does not speak of is refused: a made-up argument would be shown to approvers as if it counted."""
    schema = {key: each for key, each in given.items() if key != "$id"}
    if schema.get("type", "object") != "object":
        raise Unusable("its arguments are no JSON object")
    schema["type"] = "object"
    if not any(key in schema for key in _OPEN):
        schema["additionalProperties"] = False
    check(schema)
    return schema
