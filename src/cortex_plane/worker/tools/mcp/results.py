"""What a server's tool returned, as the plane keeps it: JSON, bounded, without secrets, and nothing fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from cortex_plane.worker.tools.mcp.redaction import Redaction

if TYPE_CHECKING:
    from mcp_types import CallToolResult

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
