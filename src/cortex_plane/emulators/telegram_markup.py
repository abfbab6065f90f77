"""Telegram's HTML, read as its servers do: text with entities, or an error that says what is wrong."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass, field
from typing import Any

_TAG = re.compile(r"<(/?)([a-zA-Z0-9-]+)((?:\s[^<>]*)?)>")
_ENTITY = re.compile(r"&(lt|gt|amp|quot|#\d+|#x[0-9a-fA-F]+);")
_TYPES = {
    "b": "bold", "strong": "bold", "i": "italic", "em": "italic", "u": "underline", "ins": "underline",
    "s": "strikethrough", "strike": "strikethrough", "del": "strikethrough", "code": "code", "pre": "pre",
    "a": "text_link", "tg-spoiler": "spoiler", "blockquote": "blockquote",
}  # fmt: skip
_HREF = re.compile(r"""href\s*=\s*(?:"([^"]*)"|'([^']*)')""")
_LANGUAGE = re.compile(r"""class\s*=\s*["']language-([^"']*)["']""")


class MarkupError(ValueError):
    """What Telegram answers after `Bad Request: can't parse entities: `."""


@dataclass
class _Reader:
    text: str = ""
    entities: list[dict[str, Any]] = field(default_factory=list)
    open_tags: list[tuple[str, str, int]] = field(default_factory=list)

    def add(self, source: str) -> None:
        self.text += _ENTITY.sub(lambda match: html.unescape(match.group()), source)

    def close_tag(self, name: str, at: int) -> None:
        if not self.open_tags:
            raise MarkupError(f"Unexpected end tag at byte offset {at}")
        opened, attributes, begin = self.open_tags.pop()
        if opened != name:
            raise MarkupError(f'Unmatched end tag at byte offset {at}, expected "</{opened}>", found "</{name}>"')
        length = utf16(self.text) - begin
        entity: dict[str, Any] = {"type": _TYPES[name], "offset": begin, "length": length}
        if (href := _HREF.search(attributes)) is not None:
            entity["url"] = html.unescape(href[1] or href[2] or "")
        if length and (name != "a" or "url" in entity):
            self.entities.append(entity)


def utf16(text: str) -> int:
    """The length of a text as Telegram counts it."""
    return len(text.encode("utf-16-le")) // 2


def read_html(source: str) -> tuple[str, list[dict[str, Any]]]:
    """The text and its entities. Raises ``MarkupError``."""
    reader, at = _Reader(), 0
    while at < len(source):
        begin = source.find("<", at)
        if begin < 0:
            reader.add(source[at:])
            break
        reader.add(source[at:begin])
        offset = len(source[:begin].encode())
        match = _TAG.match(source, begin)
        if match is None:
            raise MarkupError(f'Unsupported start tag "{source[begin + 1 : begin + 11]}" at byte offset {offset}')
        is_end, name, attributes = bool(match[1]), match[2].lower(), match[3]
        if name not in _TYPES:
            raise MarkupError(f'Unsupported start tag "{name}" at byte offset {offset}')
        if is_end:
            reader.close_tag(name, offset)
        else:
            reader.open_tags.append((name, attributes, utf16(reader.text)))
        at = match.end()
    if reader.open_tags:
        name, _, _ = reader.open_tags[-1]
        raise MarkupError(f'Can\'t find end tag corresponding to start tag "{name}"')
    reader.entities.sort(key=lambda entity: (entity["offset"], -entity["length"]))
    return reader.text, reader.entities
