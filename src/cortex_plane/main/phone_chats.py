"""Chats of the emulators as the dashboard's phone shows them: text with its look, buttons, and what the app asks for."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import pairwise, takewhile
from typing import Any
from urllib.parse import urlsplit

from cortex_plane.dashboard.phone import (
    MESSAGES_SHOWN,
    PhoneBlock,
    PhoneBlockKind,
    PhoneButton,
    PhoneChat,
    PhoneMessage,
    PhoneQuestion,
    PhoneStyle,
    PhoneText,
)
from cortex_plane.emulators.slack import BOT_USER, SlackMessage, SlackView
from cortex_plane.emulators.telegram import TelegramMessage

QUOTE_LENGTH = 60
_ENTITIES = {
    "bold": PhoneStyle.BOLD, "italic": PhoneStyle.ITALIC, "strikethrough": PhoneStyle.STRIKE, "code": PhoneStyle.CODE,
}  # fmt: skip
_ENTITY_BLOCKS = {"pre": PhoneBlockKind.CODE, "blockquote": PhoneBlockKind.QUOTE}
_RICH_BLOCKS = {"rich_text_preformatted": PhoneBlockKind.CODE, "rich_text_quote": PhoneBlockKind.QUOTE}


def telegram_chat(messages: Sequence[TelegramMessage], notice: str) -> PhoneChat:
    by_id = {message.id: message for message in messages}
    # Telegram keeps asking until its person writes something.
    newest = takewhile(lambda message: message.is_of_bot, reversed(messages))
    asks = next((message for message in newest if message.asks_reply), None)
    question = None if asks is None else PhoneQuestion(id=str(asks.id), title=_excerpt(asks.text))
    return PhoneChat(
        messages=[_telegram_message(message, by_id) for message in messages[-MESSAGES_SHOWN:]],
        question=question,
        notice="" if question else notice,
    )


def _telegram_message(message: TelegramMessage, by_id: Mapping[int, TelegramMessage]) -> PhoneMessage:
    earlier = by_id.get(message.reply_to or 0)
    return PhoneMessage(
        id=str(message.id),
        is_mine=not message.is_of_bot,
        at=datetime.fromtimestamp(message.date, UTC),
        blocks=entity_blocks(message.text, message.entities),
        buttons=[
            [
                PhoneButton(
                    label=button["text"], data=str(button.get("callback_data", "")), url=_link(button.get("url"))
                )
                for button in row
            ]
            for row in message.buttons
        ],
        quote="" if earlier is None else _excerpt(earlier.text),
        note="edited" if message.is_edited else "",
    )


def entity_blocks(text: str, entities: Sequence[Mapping[str, Any]]) -> list[PhoneBlock]:
    """Telegram counts in units of UTF-16."""
    units = text.encode("utf-16-le")
    blocks: list[PhoneBlock] = []
    at, end = 0, len(units) // 2
    block_entities = sorted((e for e in entities if e["type"] in _ENTITY_BLOCKS), key=lambda e: e["offset"])
    for entity in block_entities:
        begin, until = entity["offset"], entity["offset"] + entity["length"]
        if begin >= at:
            blocks += _entity_block(units, entities, at, begin, PhoneBlockKind.TEXT)
            blocks += _entity_block(units, entities, begin, until, _ENTITY_BLOCKS[entity["type"]])
            at = until
    return [*blocks, *_entity_block(units, entities, at, end, PhoneBlockKind.TEXT)]


def _entity_block(
    units: bytes, entities: Sequence[Mapping[str, Any]], begin: int, end: int, kind: PhoneBlockKind
) -> Iterator[PhoneBlock]:
    inline = [e for e in entities if e["type"] in _ENTITIES or e["type"] == "text_link"]
    edges = {place for e in inline for place in (e["offset"], e["offset"] + e["length"]) if begin < place < end}
    places = sorted({begin, end} | edges)
    texts = []
    for start, stop in pairwise(places):
        around = [e for e in inline if e["offset"] <= start and stop <= e["offset"] + e["length"]]
        texts.append(
            PhoneText(
                text=units[2 * start : 2 * stop].decode("utf-16-le", "replace"),
                styles=frozenset(_ENTITIES[e["type"]] for e in around if e["type"] in _ENTITIES),
                url=next((_link(e.get("url")) for e in around if e["type"] == "text_link"), None),
            )
        )
    yield from _block(texts, kind)


def slack_chat(user: str, messages: Sequence[SlackMessage], view: SlackView | None) -> PhoneChat:
    by_ts = {message.ts: message for message in messages}
    ordered = sorted(messages, key=lambda message: _ts(message.ts))
    return PhoneChat(
        messages=[_slack_message(user, message, by_ts) for message in ordered[-MESSAGES_SHOWN:]],
        question=None if view is None else _slack_form(view),
    )


def _ts(ts: str) -> tuple[int, int]:
    seconds, _, number = ts.partition(".")
    return int(seconds), int(number or "0")


def _slack_message(user: str, message: SlackMessage, by_ts: Mapping[str, SlackMessage]) -> PhoneMessage:
    earlier = by_ts.get(message.thread or "")
    note = "Only visible to you" if message.only_for == user else ""
    return PhoneMessage(
        id=message.ts,
        is_mine=message.user != BOT_USER,
        at=datetime.fromtimestamp(_ts(message.ts)[0], UTC),
        blocks=rich_blocks(message.blocks) or [PhoneBlock(texts=[PhoneText(text=html.unescape(message.text))])],
        buttons=[
            [
                PhoneButton(
                    label=button["text"]["text"], data=str(button.get("value", "")), url=_link(button.get("url"))
                )
                for button in message.buttons
            ]
        ]
        if message.buttons
        else [],
        quote="" if earlier is None else _excerpt(earlier.visible),
        note=note or ("edited" if message.is_edited else ""),
    )


def _slack_form(view: SlackView) -> PhoneQuestion:
    blocks = view.view["blocks"]
    (field, *_) = [block for block in blocks if block["type"] == "input"] or [{}]
    text = "".join(part.text for block in rich_blocks(blocks) for part in block.texts)
    return PhoneQuestion(
        id=view.id,
        title=view.view["title"]["text"],
        text=text,
        label=field.get("label", {}).get("text", ""),
        is_form=True,
        is_optional=bool(field.get("optional")),
    )


def rich_blocks(blocks: Sequence[Mapping[str, Any]]) -> list[PhoneBlock]:
    shown: list[PhoneBlock] = []
    for block in blocks:
        match block["type"]:
            case "rich_text":
                for element in block["elements"]:
                    shown += _rich_element(element)
            case "section" | "header" if "text" in block:
                shown += _block([PhoneText(text=html.unescape(block["text"]["text"]))], PhoneBlockKind.TEXT)
            case "context":
                texts = [PhoneText(text=html.unescape(element["text"])) for element in block["elements"]]
                shown += _block(texts, PhoneBlockKind.TEXT)
    return shown


def _rich_element(element: Mapping[str, Any]) -> Iterator[PhoneBlock]:
    if element["type"] != "rich_text_list":
        kind = _RICH_BLOCKS.get(element["type"], PhoneBlockKind.TEXT)
        yield from _block([_leaf(leaf) for leaf in element["elements"]], kind)
        return
    first = int(element.get("offset", 0)) + 1
    for number, item in enumerate(element["elements"], first):
        marker = "• " if element.get("style") == "bullet" else f"{number}. "
        indent = "   " * int(element.get("indent", 0))
        yield from _block(
            [PhoneText(text=indent + marker), *(_leaf(leaf) for leaf in item["elements"])], PhoneBlockKind.TEXT
        )


def _leaf(leaf: Mapping[str, Any]) -> PhoneText:
    match leaf["type"]:
        case "text":
            style = leaf.get("style", {})
            return PhoneText(
                text=leaf["text"], styles=frozenset(PhoneStyle(name) for name in PhoneStyle if style.get(name))
            )
        case "link":
            return PhoneText(text=str(leaf.get("text") or leaf["url"]), url=_link(leaf["url"]))
        case "date":
            return PhoneText(text=str(leaf.get("fallback", "")))
        case kind:
            return PhoneText(text=f"@{leaf.get(f'{kind}_id') or leaf.get('name') or kind}")


def _block(texts: Sequence[PhoneText], kind: PhoneBlockKind) -> Iterator[PhoneBlock]:
    """Line breaks around a block are the edges of the block."""
    pieces = [text for text in texts if text.text]
    if pieces:
        pieces[0] = PhoneText(text=pieces[0].text.lstrip("\n"), styles=pieces[0].styles, url=pieces[0].url)
        pieces[-1] = PhoneText(text=pieces[-1].text.rstrip("\n"), styles=pieces[-1].styles, url=pieces[-1].url)
    if any(piece.text for piece in pieces):
        yield PhoneBlock(texts=[piece for piece in pieces if piece.text], kind=kind)


def _excerpt(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= QUOTE_LENGTH else f"{line[: QUOTE_LENGTH - 1]}…"


def _link(url: Any) -> str | None:
    """Only addresses of the web: a page must not obey another."""
    return str(url) if isinstance(url, str) and urlsplit(url).scheme in ("http", "https") else None
