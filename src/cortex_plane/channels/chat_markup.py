"""Cards and replies in the markup of chats that write bold, code and quotes with signs around the text: Discord and WhatsApp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cortex_plane.channels.card_text import CardLine, LineKind
from cortex_plane.channels.markdown import BlockKind, MarkdownBlock, read_markdown

FENCE = "```"
_ESCAPED_FENCE = "\\u0060" * 3
"""The same JSON."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatMarkup:
    bold: str
    italic: str
    strike: str
    escape: Callable[[str], str]
    """Text that is nobody's markup."""
    time: Callable[[CardLine], str]
    """What stands behind the label of a line with a time."""

    def lines(self, lines: Sequence[CardLine]) -> str:
        return "\n".join(map(self.line, lines))

    def line(self, line: CardLine) -> str:
        label = self._strong(f"{line.label}:") if line.label else ""
        match line.kind:
            case LineKind.HEADING:
                return f"{self._strong(line.label)}\n{self.escape(line.text)}"
            case LineKind.NOTE:
                return self.escape(line.text)
            case LineKind.FIELD:
                return f"{label} {self.escape(line.text)}"
            case LineKind.TIME:
                return f"{label} {self.time(line)}"
            case LineKind.CODE:
                return f"{label}\n{_fenced(line.text)}"
        return f"{label}\n{self._quote(self.escape(line.text))}"

    def size(self, line: CardLine) -> int:
        return len(self.line(line)) + 1

    def reply(self, markdown: str) -> str:
        """Markdown of a model. A fence in it stands at the beginning of a line, so that `chunks` can split it."""
        blocks = read_markdown(markdown)
        parts: list[str] = []
        for number, block in enumerate(blocks):
            is_list = number > 0 and block.kind is BlockKind.ITEM and blocks[number - 1].kind is BlockKind.ITEM
            parts.append(("\n" if is_list else "\n\n") if number else "")
            parts.append(self._block(block))
        return "".join(parts)

    def _block(self, block: MarkdownBlock) -> str:
        if block.kind is BlockKind.CODE:
            return _fenced(block.text)
        text = "".join(self._span(span.text, span.styles) for span in block.spans)
        match block.kind:
            case BlockKind.HEADING:
                return f"{self.bold}{self.escape(block.text)}{self.bold}"
            case BlockKind.QUOTE:
                return self._quote(text)
            case BlockKind.ITEM:
                return f"{'  ' * block.depth}{block.marker} {text}" if block.marker else text
        return text

    def _span(self, text: str, styles: frozenset[str]) -> str:
        if "code" in styles:
            return f"`{text.replace('`', chr(39))}`"
        core = text.strip()
        if not core or not styles:
            return self.escape(text)
        before, _, after = text.partition(core)
        marks = [
            mark
            for name, mark in (("bold", self.bold), ("italic", self.italic), ("strike", self.strike))
            if name in styles
        ]
        return f"{before}{''.join(marks)}{self.escape(core)}{''.join(reversed(marks))}{after}"

    def _strong(self, label: str) -> str:
        return f"{self.bold}{self.escape(label)}{self.bold}"

    @staticmethod
    def _quote(text: str) -> str:
        return "\n".join(f"> {part}" for part in text.split("\n"))


def _fenced(text: str) -> str:
    return f"{FENCE}\n{text.replace(FENCE, _ESCAPED_FENCE)}\n{FENCE}"
