"""A card as a message of Discord: a heading, embeds with its lines, buttons."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from typing import Any, Final

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.card_text import CardLine, LineKind, card_heading, card_lines, fit, short_lines
from cortex_plane.channels.chat_markup import ChatMarkup
from cortex_plane.notify.model.channels import Button, ButtonAction
from cortex_plane.notify.model.notifications import Alert, Card, Occasion

MAX_TEXT = 2000
MAX_EMBED = 4096
MAX_EMBEDS = 5900
"""Of all embeds of a message; Discord counts up to 6000."""
_MARGIN = 100
"""Times and headings differ between the card that was looked at and the one that is sent."""
_MAX_HEADING = 500
_MAX_LABEL, _MAX_URL = 80, 512
SUPPRESS_EMBEDS = 4
"""A flag: no previews of links."""
_NO_MENTIONS: Final[dict[str, Any]] = {"parse": []}
_ROW, _BUTTON, _LINK = 1, 2, 5
_STYLES = {ButtonAction.APPROVE: 3, ButtonAction.DENY: 4, ButtonAction.RESPOND: 2}
_COLOURS = {"low": 0x2E6B3F, "medium": 0x7A5400, "high": 0xA3341C, "critical": 0x8C1030}
_OUTCOMES = {ApprovalStatus.APPROVED: 0x2E6B3F, ApprovalStatus.DENIED: 0x8C1030}
_GREY = 0x4A5360

# A backslash before any punctuation shows it as it is: no mention, no link, no emoji, no bold.
_MARKUP = re.compile(r"([\\*_~|`<>\[\]()#@:])|^(\s*)([-+]|\d+\.)(?=\s)", re.MULTILINE)


def escape(text: str) -> str:
    return _MARKUP.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    if match[1]:
        return f"\\{match[1]}"
    return f"{match[2]}{match[3][:-1]}\\{match[3][-1]}"


def _time(line: CardLine) -> str:
    """In the reader's own time; the time that is left counts down by itself."""
    text = line.text.partition(". ")[2] if line.text.startswith("in ") else line.text
    if line.at is None:
        return escape(text)
    seconds = int(line.at.timestamp())
    return f"<t:{seconds}:f> (<t:{seconds}:R>). {escape(text)}".rstrip(" .")


MARKUP = ChatMarkup(bold="**", italic="*", strike="~~", escape=escape, time=_time)


def _size(line: CardLine) -> int:
    """A line longer than an embed has to be cut, whatever stands beside it."""
    size = MARKUP.size(line)
    return size if size < MAX_EMBED else 2 * MAX_EMBEDS


def fit_card(lines: Sequence[CardLine]) -> tuple[Sequence[CardLine], bool]:
    """What is surely whole, also when its times and its heading have changed a little."""
    return fit(lines[1:], MAX_EMBEDS - _MARGIN, _size)


def card_message(card: Card, now: datetime, *, is_first: bool) -> dict[str, Any]:
    lines, is_whole = fit(card_lines(card, now)[1:], MAX_EMBEDS, _size)
    is_pending = card.status is ApprovalStatus.PENDING
    colour = _COLOURS.get(card.risk, _GREY) if is_pending else _OUTCOMES.get(card.status, _GREY)
    buttons = [button for button in card.buttons if is_whole or button.action is not ButtonAction.APPROVE]
    embeds: list[dict[str, Any]] = [{"description": text, "color": colour} for text in _pages(lines)]
    if is_pending and embeds and card.buttons:
        # People type it: a command of Discord cannot be a reply.
        first = Button(action=ButtonAction.MORE, notification_id=card.buttons[0].notification_id, version=1)
        embeds[-1]["footer"] = {"text": f"Request {first.short_id}"}
    return {
        "content": _heading(card, now, is_first=is_first),
        "embeds": embeds,
        "components": _components(buttons if is_pending else (), card.url),
        "allowed_mentions": _NO_MENTIONS,
    }


def reminder_message(card: Card, now: datetime, message_id: str) -> dict[str, Any]:
    """What stands under the first message, so that its person is told once more."""
    deadline = [MARKUP.line(line) for line in card_lines(card, now) if line.kind is LineKind.TIME]
    return {
        "content": "\n".join([_heading(card, now, is_first=False), *deadline])[:MAX_TEXT],
        "flags": SUPPRESS_EMBEDS,
        "allowed_mentions": _NO_MENTIONS,
        "message_reference": {"message_id": message_id, "fail_if_not_exists": False},
    }


def calls_again(card: Card, shown_hash: str | None) -> bool:
    """Whether the person is to notice this card: a change of a message is silent."""
    if card.status is not ApprovalStatus.PENDING:
        return False
    return card.occasion in (Occasion.REMINDED, Occasion.ESCALATED, Occasion.DELEGATED) or card.input_hash != shown_hash


def alert_message(alert: Alert, now: datetime) -> dict[str, Any]:
    heading, *lines = short_lines(alert, now)
    fitted, _ = fit(lines, MAX_EMBED - _MARGIN, _size)
    return {
        "content": MARKUP.line(heading)[:_MAX_HEADING],
        "embeds": [{"description": MARKUP.lines(fitted), "color": _COLOURS["critical"]}],
        "components": _components((), alert.url),
        "allowed_mentions": _NO_MENTIONS,
    }


def text_message(text: str) -> dict[str, Any]:
    return {"content": text, "flags": SUPPRESS_EMBEDS, "allowed_mentions": _NO_MENTIONS}


def _heading(card: Card, now: datetime, *, is_first: bool) -> str:
    title = card_lines(card, now)[0].text
    return f"**{escape(card_heading(card, is_first=is_first))}**\n{escape(title)}"[:_MAX_HEADING]


def _pages(lines: Sequence[CardLine]) -> list[str]:
    pages: list[str] = []
    for text in map(MARKUP.line, lines):
        if pages and len(pages[-1]) + len(text) < MAX_EMBED:
            pages[-1] += f"\n{text}"
        else:
            pages.append(text[:MAX_EMBED])
    return pages


def _components(buttons: Sequence[Button], url: str) -> list[dict[str, Any]]:
    row: list[dict[str, Any]] = [
        {"type": _BUTTON, "style": _STYLES[button.action], "label": button.label[:_MAX_LABEL], "custom_id": button.data}
        for button in buttons
        if button.action in _STYLES
    ]
    if len(url) <= _MAX_URL:
        row.append({"type": _BUTTON, "style": _LINK, "label": "Open", "url": url})
    return [{"type": _ROW, "components": row}] if row else []
