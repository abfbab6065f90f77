"""Markdown of a model as blocks of styled text, which a channel renders in the markup of its vendor.

Links are shown with their address beside their words, so that words cannot hide where they lead. HTML is text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token

from cortex_plane.kernel.text import marked

_STYLES = {"strong": "bold", "em": "italic", "s": "strike"}
_DEEPEST = 6
_TAB = 4


class BlockKind(StrEnum):
    PARAGRAPH = "paragraph"
    HEADING = "heading"
    ITEM = "item"
    QUOTE = "quote"
    CODE = "code"
    """It has one span."""


@dataclass(frozen=True, slots=True)
class StyledText:
    text: str
    styles: frozenset[str] = frozenset()
    """Of `bold`, `italic`, `strike` and `code`."""


@dataclass(frozen=True, slots=True)
class MarkdownBlock:
    kind: BlockKind
    spans: tuple[StyledText, ...]
    marker: str = ""
    """Of an item: `•` or its number."""
    depth: int = 0
    """Of an item: how many lists it stands in besides its own."""

    @property
    def text(self) -> str:
        return "".join(span.text for span in self.spans)


@lru_cache(maxsize=1)
def _parser() -> MarkdownIt:
    return MarkdownIt("commonmark", {"html": False, "maxNesting": 20}).enable("strikethrough")


def visible_text(text: str) -> str:
    """Words of a model with their hidden characters marked. Tabs and line ends of any kind are no such characters."""
    return marked("\n".join(text.expandtabs(_TAB).replace("\r\n", "\n").split("\r")))


def read_markdown(text: str) -> Sequence[MarkdownBlock]:
    return list(_blocks(_parser().parse(visible_text(text))))


def _blocks(tokens: Sequence[Token]) -> Iterator[MarkdownBlock]:
    lists: list[int | None] = []
    quotes, marker, kind = 0, "", BlockKind.PARAGRAPH
    for token in tokens:
        match token.type:
            case "bullet_list_open":
                lists.append(None)
            case "ordered_list_open":
                lists.append(int(token.attrs.get("start", 1)))
            case "bullet_list_close" | "ordered_list_close":
                lists.pop()
            case "list_item_open":
                number = lists[-1]
                marker = "•" if number is None else f"{number}."
                lists[-1] = None if number is None else number + 1
            case "blockquote_open":
                quotes += 1
            case "blockquote_close":
                quotes -= 1
            case "heading_open":
                kind = BlockKind.HEADING
            case "heading_close":
                kind = BlockKind.PARAGRAPH
            case "fence" | "code_block":
                yield MarkdownBlock(BlockKind.CODE, (StyledText(token.content.rstrip("\n")),))
            case "hr":
                yield MarkdownBlock(BlockKind.PARAGRAPH, (StyledText("———"),))
            case "inline":
                where = BlockKind.ITEM if lists else BlockKind.QUOTE if quotes else kind
                spans = tuple(_spans(token.children or ()))
                depth = min(max(len(lists) - 1, 0), _DEEPEST)
                yield MarkdownBlock(where, spans, marker if lists else "", depth)
                marker = ""


def _spans(tokens: Sequence[Token]) -> Iterator[StyledText]:
    styles: list[str] = []
    links: list[tuple[str, list[str]]] = []
    for token in tokens:
        name, _, side = token.type.rpartition("_")
        text = ""
        if name in _STYLES:
            if side == "open":
                styles.append(_STYLES[name])
            else:
                styles.remove(_STYLES[name])
        elif token.type == "link_open":
            links.append((str(token.attrs.get("href", "")), []))
        elif token.type == "link_close":
            address, words = links.pop()
            text = "" if "".join(words) in (address, address.removeprefix("mailto:")) else f" ({address})"
        elif token.type in ("softbreak", "hardbreak"):
            text = "\n"
        elif token.type == "image":
            text = f"{token.content} ({token.attrs.get('src', '')})"
        else:
            text = token.content
        if text:
            for _, words in links:
                words.append(text)
            code = ["code"] if token.type == "code_inline" else []
            yield StyledText(text, frozenset(styles + code))
