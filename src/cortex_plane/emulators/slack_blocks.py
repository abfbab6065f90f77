"""The limits of Slack's Block Kit: what its servers answer with `invalid_blocks`, and where."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

MOST_BLOCKS, MOST_VIEW_BLOCKS = 50, 100
MOST_ELEMENTS = 25
LONGEST_MESSAGE = 40_000
LONGEST_BLOCKS = 13_000
"""Characters of all text in the blocks of one message."""
_SECTION_TEXT, _HEADER_TEXT, _BUTTON_TEXT, _BUTTON_VALUE, _BUTTON_URL, _ACTION_ID = 3000, 150, 75, 2000, 3000, 255
_VIEW_TITLE, _METADATA = 24, 3000
_RICH_PARTS = ("rich_text_section", "rich_text_list", "rich_text_preformatted", "rich_text_quote")
_RICH_LEAVES = ("text", "link", "emoji", "date", "user", "channel", "usergroup", "broadcast")
_STYLES = ("bold", "italic", "strike", "code", "underline")


def block_problems(blocks: Any) -> list[str]:
    """Empty where Slack would take them."""
    if not isinstance(blocks, list) or len(blocks) > MOST_BLOCKS:
        return [f"must be a list of at most {MOST_BLOCKS} blocks"]
    problems = [problem for number, block in enumerate(blocks) for problem in _problems(block, f"/blocks/{number}")]
    ids = [block["block_id"] for block in blocks if isinstance(block, dict) and "block_id" in block]
    if len(set(ids)) < len(ids):
        problems.append("`block_id` is not unique")
    return problems


def view_problems(view: Any) -> list[str]:
    """The same for the view of a modal."""
    if not isinstance(view, dict) or view.get("type") != "modal":
        return ["must be a modal"]
    blocks = view.get("blocks")
    if not isinstance(blocks, list) or not 1 <= len(blocks) <= MOST_VIEW_BLOCKS:
        return [f"must have 1 to {MOST_VIEW_BLOCKS} blocks"]
    problems = [*_text(view.get("title"), "/title", _VIEW_TITLE, ("plain_text",))]
    for name in ("submit", "close"):
        if name in view:
            problems += _text(view[name], f"/{name}", _VIEW_TITLE, ("plain_text",))
    if any(isinstance(block, dict) and block.get("type") == "input" for block in blocks) and "submit" not in view:
        problems.append("missing `submit` where a block is an input")
    if len(str(view.get("private_metadata", ""))) > _METADATA:
        problems.append(f"`private_metadata` has more than {_METADATA} characters")
    return problems + [problem for n, block in enumerate(blocks) for problem in _problems(block, f"/blocks/{n}")]


def text_length(blocks: Sequence[Mapping[str, Any]]) -> int:
    return sum(len(text) for block in blocks for text in _texts(block))


def visible_text(blocks: Sequence[Mapping[str, Any]]) -> str:
    """What a reader sees of the blocks."""
    return "\n".join("".join(_texts(block)) for block in blocks)


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        if value.get("type") == "date":
            yield str(value.get("fallback", ""))
        elif isinstance(value.get("text"), str):
            yield value["text"]
        for name, part in value.items():
            if name in ("text", "elements", "fields", "accessory") and not isinstance(part, str):
                yield from _texts(part)
        if value.get("type") in ("rich_text_section", "rich_text_preformatted", "rich_text_quote"):
            yield "\n"
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part)


def _problems(block: Any, where: str) -> Iterator[str]:
    kind = block.get("type") if isinstance(block, dict) else None
    match kind:
        case "section":
            if not ("text" in block or "fields" in block):
                yield f"{where}: a section needs `text` or `fields`"
            if "text" in block:
                yield from _text(block["text"], where, _SECTION_TEXT, ("plain_text", "mrkdwn"))
        case "header":
            yield from _text(block.get("text"), where, _HEADER_TEXT, ("plain_text",))
        case "context":
            for element in _elements(block, 10):
                yield from _text(element, where, _SECTION_TEXT, ("plain_text", "mrkdwn"))
        case "actions":
            elements = _elements(block, MOST_ELEMENTS)
            if not elements:
                yield f"{where}: must have 1 to {MOST_ELEMENTS} elements"
            for element in elements:
                yield from _button(element, where)
        case "rich_text":
            for element in _elements(block, 1000):
                yield from _rich(element, where)
        case "input":
            yield from _text(block.get("label"), where, 2000, ("plain_text",))
            element = block.get("element")
            if not isinstance(element, dict) or element.get("type") != "plain_text_input":
                yield f"{where}: the emulator knows inputs of plain text alone"
        case "divider":
            pass
        case _:
            yield f"{where}: unsupported type {kind!r}"


def _elements(block: Mapping[str, Any], most: int) -> list[Any]:
    elements = block.get("elements")
    return elements if isinstance(elements, list) and len(elements) <= most else []


def _text(text: Any, where: str, limit: int, kinds: tuple[str, ...]) -> Iterator[str]:
    if not isinstance(text, dict) or text.get("type") not in kinds or not isinstance(text.get("text"), str):
        yield f"{where}: must be a text of {' or '.join(kinds)}"
    elif not 1 <= len(text["text"]) <= limit:
        yield f"{where}: must have 1 to {limit} characters"


def _button(element: Any, where: str) -> Iterator[str]:
    if not isinstance(element, dict) or element.get("type") != "button":
        yield f"{where}: the emulator knows buttons alone"
        return
    yield from _text(element.get("text"), where, _BUTTON_TEXT, ("plain_text",))
    for name, limit in (("value", _BUTTON_VALUE), ("url", _BUTTON_URL), ("action_id", _ACTION_ID)):
        if not len(str(element.get(name, ""))) <= limit:
            yield f"{where}: `{name}` has more than {limit} characters"
    if element.get("style", "primary") not in ("primary", "danger"):
        yield f"{where}: `style` is primary or danger"


def _rich(element: Any, where: str) -> Iterator[str]:
    kind = element.get("type") if isinstance(element, dict) else None
    if kind not in _RICH_PARTS or not isinstance(element.get("elements"), list):
        yield f"{where}: unsupported part of rich text {kind!r}"
        return
    for leaf in element["elements"]:
        if kind == "rich_text_list":
            if not isinstance(leaf, dict) or leaf.get("type") != "rich_text_section":
                yield f"{where}: a list holds sections"
            else:
                yield from _rich(leaf, where)
        elif not isinstance(leaf, dict) or leaf.get("type") not in _RICH_LEAVES:
            yield f"{where}: unsupported element of rich text"
        elif leaf["type"] == "text" and not (isinstance(leaf.get("text"), str) and leaf["text"]):
            yield f"{where}: a text must not be empty"
        elif not set(leaf.get("style", {})) <= set(_STYLES):
            yield f"{where}: unsupported style"
