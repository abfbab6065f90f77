"""Messages as Slack takes them. Text of others stands in rich text alone, where Slack reads no markup, no mention and no link."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from cortex_plane.channels.card_text import CardLine, LineKind, fit, one_line
from cortex_plane.channels.markdown import BlockKind, MarkdownBlock, read_markdown
from cortex_plane.kernel.text import marked, stamp
from cortex_plane.notify.model.channels import Button, ButtonAction

CARD_LIMIT = 10_000
"""Characters of all blocks of one message."""
REPLY_LIMIT = 3900
FALLBACK_LIMIT = 300
FORM = "cortex_words"
ACTION_PREFIX = "cortex_"
_INPUT_LIMIT = 3000
_TITLES = {ButtonAction.DENY: "Deny", ButtonAction.RESPOND: "Respond", ButtonAction.APPROVE: "Approve"}
_STYLES = {ButtonAction.APPROVE: "primary", ButtonAction.DENY: "danger"}
_PROMPT_LIMIT = 2000
_DATE = "{date_short_pretty} at {time}"

Block = dict[str, Any]


def escape(text: str) -> str:
    """For texts that Slack reads as its markup: `<!channel>` mentions nobody then."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def fallback(text: str) -> str:
    """What notifications show, and readers that know no blocks."""
    return escape(one_line(text, FALLBACK_LIMIT)) or "…"


def fit_card(lines: Sequence[CardLine]) -> tuple[Sequence[CardLine], bool]:
    """The lines that one message holds, and whether all that a decision is about is whole."""
    return fit(lines, CARD_LIMIT - 500)


def card_blocks(lines: Sequence[CardLine], buttons: Sequence[Button], url: str) -> list[Block]:
    blocks = [rich_text(part for line in lines for part in _line(line))]
    elements: list[Block] = []
    for button in buttons:
        element = {**_button(button.label, f"{ACTION_PREFIX}{button.action.name.lower()}"), "value": button.data}
        if button.action in _STYLES:
            element["style"] = _STYLES[button.action]
        elements.append(element)
    elements.append({**_button("Open", f"{ACTION_PREFIX}open"), "url": url})
    return [*blocks, {"type": "actions", "block_id": "cortex_actions", "elements": elements}]


def _button(label: str, action: str) -> Block:
    return {"type": "button", "action_id": action, "text": {"type": "plain_text", "text": label}}


def lines_blocks(lines: Sequence[CardLine], url: str) -> list[Block]:
    link = section([{"type": "link", "url": url}])
    return [rich_text([*(part for line in lines for part in _line(line)), link])]


def _line(line: CardLine) -> list[Block]:
    label = _text(f"{line.label}: ", bold=True)
    match line.kind:
        case LineKind.HEADING:
            return [section([_text(f"{line.label}\n", bold=True), _text(line.text)])]
        case LineKind.FIELD:
            return [section([_text("\n"), label, _text(line.text or "–")])]
        case LineKind.NOTE:
            return [section([_text("\n"), _text(line.text, italic=True)])]
        case LineKind.TIME:
            after = [_text(f" ({line.text})")] if line.text else []
            return [section([_text("\n"), label, _date(line), *after])]
        case LineKind.QUOTE | LineKind.CODE:
            kind = "rich_text_quote" if line.kind is LineKind.QUOTE else "rich_text_preformatted"
            return [section([_text("\n"), label]), {"type": kind, "elements": [_text(line.text or "–")]}]


def _date(line: CardLine) -> Block:
    """In the reader's own time."""
    if line.at is None:
        return _text("–")
    return {"type": "date", "timestamp": int(line.at.timestamp()), "format": _DATE, "fallback": stamp(line.at)}


def rich_text(elements: Iterable[Block]) -> Block:
    """Sections that follow one another become one, so that no gap stands between lines."""
    merged: list[Block] = []
    for element in elements:
        if merged and element["type"] == merged[-1]["type"] == "rich_text_section":
            merged[-1] = section([*merged[-1]["elements"], *element["elements"]])
        else:
            merged.append(element)
    return {"type": "rich_text", "elements": merged}


def section(elements: list[Block]) -> Block:
    return {"type": "rich_text_section", "elements": elements}


def _text(text: str, **styles: bool) -> Block:
    return {"type": "text", "text": text, "style": styles} if styles else {"type": "text", "text": text}


def reply_blocks(text: str) -> list[Block]:
    """The Markdown of a model; as it stands where it would become longer than Slack takes."""
    markdown = read_markdown(text)
    if sum(len(block.text) for block in markdown) > 2 * REPLY_LIMIT:
        return [rich_text([section([_text(marked(text))])])]
    elements = [
        _list_item(block) if block.kind is BlockKind.ITEM and block.marker else _block(block) for block in markdown
    ]
    return [rich_text(elements or [section([_text("…")])])]


def _list_item(block: MarkdownBlock) -> Block:
    style, number = ("bullet", 1) if block.marker == "•" else ("ordered", int(block.marker.rstrip(".") or 1))
    item: Block = {
        "type": "rich_text_list",
        "style": style,
        "indent": block.depth,
        "elements": [section(_spans(block))],
    }
    return item if number <= 1 else {**item, "offset": number - 1}  # Slack counts from one


def _block(block: MarkdownBlock) -> Block:
    match block.kind:
        case BlockKind.CODE:
            return {"type": "rich_text_preformatted", "elements": [_text(block.text or " ")]}
        case BlockKind.QUOTE:
            return {"type": "rich_text_quote", "elements": _spans(block)}
        case BlockKind.HEADING:
            return section([_text(f"{block.text or ' '}\n", bold=True)])
        case _:
            return section([*_spans(block), _text("\n")])


def _spans(block: MarkdownBlock) -> list[Block]:
    spans = [_text(span.text, **dict.fromkeys(sorted(span.styles), True)) for span in block.spans if span.text]
    return spans or [_text(" ")]


def words_form(action: ButtonAction, prompt: str, metadata: Mapping[str, str]) -> Block:
    """The form that asks for a reason, or for an answer."""
    is_reason = action is ButtonAction.DENY
    return {
        "type": "modal",
        "callback_id": FORM,
        "private_metadata": json.dumps(metadata),
        "title": {"type": "plain_text", "text": _TITLES[action]},
        "submit": {"type": "plain_text", "text": "Send"},
        "close": {"type": "plain_text", "text": "Cancel"},
        "blocks": [
            rich_text([section([_text(marked(prompt).strip()[:_PROMPT_LIMIT] or "…")])]),
            {
                "type": "input",
                "block_id": "words",
                "optional": is_reason,
                "label": {"type": "plain_text", "text": "Reason" if is_reason else "Your answer"},
                "element": {
                    "type": "plain_text_input",
                    "action_id": "words",
                    "multiline": True,
                    "max_length": _INPUT_LIMIT,
                },
            },
        ],
    }
