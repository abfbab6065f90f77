"""A card as messages of WhatsApp: three buttons below at most 1024 characters, and what does not fit there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.card_text import (
    CardLine,
    LineKind,
    card_heading,
    card_lines,
    chunks,
    fit,
    one_line,
    short_lines,
    time_text,
)
from cortex_plane.channels.chat_markup import ChatMarkup
from cortex_plane.notify.model.channels import Button, ButtonAction
from cortex_plane.notify.model.notifications import Alert, Card

MAX_TEXT = 4096
MAX_BODY = 1024
"""Of a message with buttons."""
MOST_BUTTONS = 3
_MARGIN = 60
"""Times and headings differ between the card that was looked at and the one that is sent."""
_MAX_TITLE = 20
_MAX_VARIABLE = 300

# WhatsApp knows no escapes, so signs that would be markup are shown as others that look alike. Arguments are shown as they are, as code.
_SIGNS = str.maketrans({"*": "∗", "~": "∼", "`": "ˋ"})
_EDGES = re.compile(r"(?<![^\W_])_+|_+(?![^\W_])")


def escape(text: str) -> str:
    return _EDGES.sub(lambda match: "＿" * len(match[0]), text.translate(_SIGNS))


def _time(line: CardLine) -> str:
    return escape(time_text(line).removeprefix(f"{line.label}: "))


MARKUP = ChatMarkup(bold="*", italic="_", strike="~", escape=escape, time=_time)


def fit_card(lines: Sequence[CardLine], url: str, limit: int = MAX_BODY - _MARGIN) -> tuple[Sequence[CardLine], bool]:
    return fit(lines, limit - len(url) - 1, MARKUP.size)


def _body(card: Card, now: datetime, *, is_first: bool) -> tuple[str, bool]:
    """The text above the buttons, and whether everything that is decided on stands there."""
    heading, *others = card_lines(card, now)
    heading = replace(heading, label=card_heading(card, is_first=is_first))
    lines, is_whole = fit_card([heading, *others], card.url, MAX_BODY)
    text, link = MARKUP.lines(lines), f"\n{card.url}"
    is_short = len(text) + len(link) <= MAX_BODY  # else not even its first lines fit
    return text[: MAX_BODY - len(link)] + link, is_whole and is_short


def card_message(card: Card, notification_id: UUID, now: datetime, *, is_first: bool) -> dict[str, Any]:
    text, is_whole = _body(card, now, is_first=is_first)
    actions = [button.action for button in card.buttons if is_whole or button.action is not ButtonAction.APPROVE]
    more = Button(action=ButtonAction.MORE, notification_id=notification_id, version=card.version)
    buttons = [*[button for button in card.buttons if button.action in actions][: MOST_BUTTONS - 1], more]
    action = {"buttons": [_reply(button) for button in buttons]}
    return {"type": "interactive", "interactive": {"type": "button", "body": {"text": text}, "action": action}}


def _reply(button: Button) -> dict[str, Any]:
    return {"type": "reply", "reply": {"id": button.data, "title": button.label[:_MAX_TITLE]}}


def whole_card(card: Card, now: datetime) -> Sequence[str]:
    """All that the plane shows of a request outside of its dashboard, in as many messages as it takes."""
    return chunks(f"{MARKUP.lines(card_lines(card, now))}\n{card.url}", MAX_TEXT)


def outcome_text(card: Card, now: datetime) -> str:
    """What became of a request; it stands below a quote of its message."""
    heading, *lines = card_lines(card, now)
    about = CardLine(label=heading.label, text=heading.text, kind=LineKind.HEADING)
    outcome = [line for line in lines if line.kind is LineKind.TIME or line.label in ("Votes", "Reason")]
    notes = [line for line in lines[-2:] if line.kind is LineKind.NOTE or line.label.startswith("Answer")]
    fitted, _ = fit([about, *dict.fromkeys([*outcome, *notes])], MAX_TEXT - len(card.url) - 1, MARKUP.size)
    return f"{MARKUP.lines(fitted)}\n{card.url}"


def template_message(name: str, language: str, card: Card, notification_id: UUID) -> dict[str, Any]:
    """A message that Meta approved: risk, tool and link, and a button that asks for the request itself."""
    values = (card.risk, one_line(card.subject, _MAX_VARIABLE), card.url)
    more = Button(action=ButtonAction.MORE, notification_id=notification_id, version=card.version)
    body = {"type": "body", "parameters": [{"type": "text", "text": value} for value in values]}
    payload = [{"type": "payload", "payload": more.data}]
    button = {"type": "button", "sub_type": "quick_reply", "index": "0", "parameters": payload}
    template = {"name": name, "language": {"code": language}, "components": [body, button]}
    return {"type": "template", "template": template}


def alert_text(alert: Alert, now: datetime) -> str:
    lines, _ = fit(short_lines(alert, now), MAX_TEXT - len(alert.url) - 1, MARKUP.size)
    return f"{MARKUP.lines(lines)}\n{alert.url}"


def text_message(text: str) -> dict[str, Any]:
    return {"type": "text", "text": {"preview_url": False, "body": text}}


def is_over(card: Card) -> bool:
    return card.status is not ApprovalStatus.PENDING
