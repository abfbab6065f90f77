"""Messages as Telegram takes them: cards and replies as its HTML, buttons as an inline keyboard."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from itertools import groupby
from typing import Any
from urllib.parse import urlsplit

from cortex_plane.channels.card_text import CardLine, LineKind, fit, time_text
from cortex_plane.channels.markdown import BlockKind, MarkdownBlock, StyledText, read_markdown
from cortex_plane.notify.model.channels import Button, ButtonAction

TEXT_LIMIT = 4096
MARGIN = 96
"""For a countdown that grows, and for what is counted otherwise than Telegram says."""
_TAGS = {"bold": "b", "italic": "i", "strike": "s", "code": "code"}
_TAG = re.compile(r"<[^>]*>")
_MENTION = re.compile(r"(?<!\w)@(?=\w)")


def utf16(text: str) -> int:
    """The length of a text as Telegram counts it."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def escape(text: str) -> str:
    return html.escape(text, quote=False)


def prose(text: str) -> str:
    """Text outside of code, where Telegram would turn `@name` into a mention."""
    return escape(_MENTION.sub("＠", text))


def fit_card(lines: Sequence[CardLine]) -> tuple[Sequence[CardLine], bool]:
    """The lines that one message holds, and whether all that a decision is about is whole."""
    return fit(lines, TEXT_LIMIT - MARGIN, lambda line: utf16(f"{line.label}{line.text}") + (30 if line.at else 4))


def card_html(lines: Sequence[CardLine]) -> str:
    return "\n".join(map(_line, lines))


def _line(line: CardLine) -> str:
    match line.kind:
        case LineKind.HEADING:
            return f"<b>{prose(line.label)}</b>\n{prose(line.text)}"
        case LineKind.FIELD:
            return f"<b>{prose(line.label)}:</b> {prose(line.text)}"
        case LineKind.QUOTE:
            return f"<b>{prose(line.label)}:</b>\n<blockquote>{prose(line.text)}</blockquote>"
        case LineKind.CODE:
            return f"<b>{prose(line.label)}:</b>\n<pre>{escape(line.text)}</pre>"
        case LineKind.TIME:
            return prose(time_text(line))
        case LineKind.NOTE:
            return f"<i>{prose(line.text)}</i>"


def keyboard(buttons: Sequence[Button], url: str) -> dict[str, Any]:
    """Approve stands apart from the others. An address that Telegram refuses as a link of a button is left out."""
    rows = [
        [{"text": button.label, "callback_data": button.data} for button in group]
        for _, group in groupby(buttons, key=lambda button: button.action is ButtonAction.APPROVE)
    ]
    if is_linkable(url):
        rows.append([{"text": "Open", "url": url}])
    return {"inline_keyboard": rows}


def is_linkable(url: str) -> bool:
    return "." in (urlsplit(url).hostname or "")


def reply_html(text: str) -> str:
    """The Markdown of a model; as it stands where it would become longer than Telegram takes, or show nothing."""
    markup = "\n".join(_block(block) for block in read_markdown(text)).strip()
    visible = html.unescape(_TAG.sub("", markup))
    return markup if visible.strip() and utf16(visible) <= TEXT_LIMIT else prose(text)


def _block(block: MarkdownBlock) -> str:
    if block.kind is BlockKind.CODE:
        return f"<pre>{escape(block.text)}</pre>"
    text = "".join(map(_span, block.spans))
    match block.kind:
        case BlockKind.HEADING:
            return f"\n<b>{text}</b>"
        case BlockKind.QUOTE:
            return f"<blockquote>{text}</blockquote>"
        case BlockKind.ITEM:
            indent = "  " * block.depth
            return f"{indent}{escape(block.marker)} {text}" if block.marker else f"{indent}  {text}"
        case _:
            return f"{text}\n"


def _span(span: StyledText) -> str:
    if "code" in span.styles:
        return f"<code>{escape(span.text)}</code>"
    tags = [_TAGS[style] for style in sorted(span.styles)]
    opening = "".join(f"<{tag}>" for tag in tags)
    closing = "".join(f"</{tag}>" for tag in reversed(tags))
    return f"{opening}{prose(span.text)}{closing}"
