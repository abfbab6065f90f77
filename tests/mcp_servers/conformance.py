"""The MCP server that the protocol's own conformance suite expects behind a gateway: its tools, resources and prompts by name."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
WAVE = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAA="
TEXT = types.TextContent(type="text", text="This is a simple text response for testing.")
IMAGE = types.ImageContent(type="image", data=PIXEL, mime_type="image/png")
AUDIO = types.AudioContent(type="audio", data=WAVE, mime_type="audio/wav")
EMBEDDED = types.EmbeddedResource(
    type="resource",
    resource=types.TextResourceContents(
        uri="test://embedded-resource", mime_type="text/plain", text="This is an embedded resource content."
    ),
)
ANSWERS: dict[str, list[Any]] = {
    "test_simple_text": [TEXT],
    "test_image_content": [IMAGE],
    "test_audio_content": [AUDIO],
    "test_embedded_resource": [EMBEDDED],
    "test_multiple_content_types": [TEXT, IMAGE, EMBEDDED],
    "test_tool_with_progress": [TEXT],
    "test_error_handling": [],
}
ADDRESSES = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": {"type": "object", "properties": {"street": {"type": "string"}}}},
    "properties": {"name": {"type": "string"}, "address": {"$ref": "#/$defs/address"}},
    "additionalProperties": False,
}
PROMPTS: dict[str, list[str]] = {
    "test_simple_prompt": [],
    "test_prompt_with_arguments": ["arg1", "arg2"],
    "test_prompt_with_embedded_resource": ["resourceUri"],
    "test_prompt_with_image": [],
}
Context = ServerRequestContext[Any, Any]


async def list_tools(_: Context, __: Any) -> types.ListToolsResult:
    tools = [types.Tool(name=name, description=f"{name}.", input_schema={"type": "object"}) for name in ANSWERS]
    tools.append(types.Tool(name="json_schema_2020_12_tool", description="Addresses.", input_schema=ADDRESSES))
    return types.ListToolsResult(tools=tools)


async def call_tool(ctx: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
    if params.name == "test_error_handling":
        text = types.TextContent(type="text", text="This tool intentionally returns an error for testing")
        return types.CallToolResult(content=[text], is_error=True)
    if params.name == "test_tool_with_progress":
        for progress in (0, 50, 100):
            await ctx.session.report_progress(progress, 100, f"{progress} of 100")
    return types.CallToolResult(content=ANSWERS[params.name])


async def list_resources(_: Context, __: Any) -> types.ListResourcesResult:
    names = [("test://static-text", "text/plain"), ("test://static-binary", "image/png")]
    return types.ListResourcesResult(
        resources=[types.Resource(uri=uri, name=uri, description=uri, mime_type=kind) for uri, kind in names]
    )


async def list_templates(_: Context, __: Any) -> types.ListResourceTemplatesResult:
    template = types.ResourceTemplate(
        uri_template="test://template/{id}/data", name="data", mime_type="application/json"
    )
    return types.ListResourceTemplatesResult(resource_templates=[template])


async def read_resource(_: Context, params: types.ReadResourceRequestParams) -> types.ReadResourceResult:
    uri = str(params.uri)
    content: Any = types.TextResourceContents(
        uri=uri, mime_type="text/plain", text="This is the content of the static text."
    )
    if uri == "test://static-binary":
        content = types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)
    elif uri.startswith("test://template/"):
        text = f'{{"id": "{uri.split("/")[3]}", "templateTest": true}}'
        content = types.TextResourceContents(uri=uri, mime_type="application/json", text=text)
    return types.ReadResourceResult(contents=[content])


async def list_prompts(_: Context, __: Any) -> types.ListPromptsResult:
    return types.ListPromptsResult(
        prompts=[
            types.Prompt(
                name=name,
                description=name,
                arguments=[types.PromptArgument(name=word, description=word, required=True) for word in words],
            )
            for name, words in PROMPTS.items()
        ]
    )


async def get_prompt(_: Context, params: types.GetPromptRequestParams) -> types.GetPromptResult:
    words = params.arguments or {}
    content: list[Any] = [
        types.TextContent(type="text", text=f"A prompt with {' and '.join(words.values()) or 'nothing'}.")
    ]
    if params.name == "test_prompt_with_image":
        content.append(IMAGE)
    elif params.name == "test_prompt_with_embedded_resource":
        resource = types.TextResourceContents(uri=words["resourceUri"], mime_type="text/plain", text="Embedded.")
        content.append(types.EmbeddedResource(type="resource", resource=resource))
    return types.GetPromptResult(messages=[types.PromptMessage(role="user", content=part) for part in content])


def conformance_server() -> Server[Any]:
    return Server[Any](
        "conformance",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_list_resource_templates=list_templates,
        on_read_resource=read_resource,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
    )
