"""What agents and tools wrote, as something that a person can trust their eyes with.

Agent text is data. It is escaped, and what is not seen, or turns a line around, is shown as its code point: a card that
looks like one thing and means another is worse than none.
"""

from __future__ import annotations

import functools
import html
import itertools
import json
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from cortex_plane.approvals.model.approvals import Excerpt
from cortex_plane.kernel.text import SUSPECT, escaped_json, hidden_in, is_hidden

__all__ = [
    "ABSENT", "Change", "brief", "changes", "cut", "escaped_json", "hidden_in", "is_hidden", "leaf", "reveal", "tree",
]  # fmt: skip


def reveal(text: str) -> Markup:
    """Escaped, with every hidden character as a visible mark."""
    return Markup(_revealed(str(text)))  # noqa: S704 -- every piece was escaped


def _revealed(text: str) -> str:
    """The same as plain markup: what is joined from many pieces must not be escaped piece by piece again."""
    parts, position = [], 0
    for match in SUSPECT.finditer(text):
        if is_hidden(match.group()):
            parts += [html.escape(text[position : match.start()]), _mark(match.group())]
            position = match.end()
    parts.append(html.escape(text[position:]))
    return "".join(parts)


@functools.lru_cache(maxsize=4096)
def _mark(character: str) -> str:
    name = html.escape(unicodedata.name(character, "CONTROL CHARACTER"))
    return f'<span class="unseen" title="{name}">⟨U+{ord(character):04X}⟩</span>'


COLOURED = 2000
"""How many values are coloured one by one. What has more is plain text: nobody reads it by its colours."""


def tree(value: Any) -> Markup:
    """JSON, indented, each kind of value in its own class. Nothing is left out, however long it is."""
    if _has_more_than(value, COLOURED):
        return reveal(_indented(value))
    return Markup("".join(_node(value, 0)))  # noqa: S704 -- every piece was escaped


def cut(value: Any, limit: int) -> Markup | None:
    """The beginning of a value that is larger than ``limit`` characters; None where it is not."""
    text = _indented(value)
    return reveal(text[:limit]) if len(text) > limit else None


def _indented(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, indent=2)


def _has_more_than(value: Any, limit: int) -> bool:
    """Looks at no more values than it must."""
    stack = [value]
    for _ in range(limit):
        if not stack:
            return False
        match stack.pop():
            case dict() as inner:
                stack.extend(itertools.islice(inner.values(), limit))
            case list() as inner:
                stack.extend(inner[:limit])
    return bool(stack)


def _node(value: Any, depth: int) -> Iterator[str]:
    match value:
        case dict() if value:
            yield from _nested("{", "}", [(_key(name), inner) for name, inner in sorted(value.items())], depth)
        case list() if value:
            yield from _nested("[", "]", [("", inner) for inner in value], depth)
        case _:
            yield _leaf(value)


def _nested(opening: str, closing: str, items: list[tuple[str, Any]], depth: int) -> Iterator[str]:
    yield opening + "\n"
    for number, (label, inner) in enumerate(items, 1):
        yield "  " * (depth + 1) + label
        yield from _node(inner, depth + 1)
        yield ",\n" if number < len(items) else "\n"
    yield "  " * depth + closing


def _key(name: str) -> str:
    return f'<bdi class="j-key">{_quoted(name)}</bdi>: '


def leaf(value: Any) -> Markup:
    """One value on its own."""
    return Markup(_leaf(value))  # noqa: S704 -- it was escaped


def _leaf(value: Any) -> str:
    match value:
        case str():
            return f'<bdi class="j-text">{_quoted(value)}</bdi>'
        case bool() | None:
            return f'<span class="j-word">{json.dumps(value)}</span>'
        case int() | float():
            return f'<span class="j-number">{json.dumps(value)}</span>'
    return _revealed(json.dumps(value, ensure_ascii=False, sort_keys=True))


_ESCAPE = re.compile(r"\\(.)")


def _quoted(text: str) -> str:
    """As JSON has it; a line break is shown as its escape and breaks the line too, so that a script can be read."""
    markup = _revealed(json.dumps(text, ensure_ascii=False))
    return _ESCAPE.sub(_broken, markup) if "\\n" in markup else markup


def _broken(match: re.Match[str]) -> str:
    return '<span class="j-break">\\n</span>\n' if match.group(1) == "n" else match.group()


def brief(value: Any, limit: int = 160) -> Markup:
    """A call's arguments on one line. It says so where something is left out."""
    if isinstance(value, Excerpt):
        return reveal(value[: limit - 1]) + Markup("…")
    pairs = sorted(value.items()) if isinstance(value, dict) else [("", value)]
    text = ""
    for name, inner in pairs:
        text += ("  " if text else "") + (f"{name}=" if name else "") + json.dumps(inner, ensure_ascii=False)
        if len(text) > limit:
            break
    return reveal(text) if len(text) <= limit else reveal(text[: limit - 1]) + Markup("…")


Change = tuple[str, Any, Any]
ABSENT = object()
"""Stands for a value that is not there: null is one that is."""


def changes(old: Any, new: Any, path: str = "") -> list[Change]:
    """What an edit changed, value by value: (path, before, after)."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = [(_below(path, name), old.get(name, ABSENT), new.get(name, ABSENT))
                 for name in sorted({*old, *new})]  # fmt: skip
    elif isinstance(old, list) and isinstance(new, list):
        pairs = [
            (f"{path}[{n}]", old[n] if n < len(old) else ABSENT, new[n] if n < len(new) else ABSENT)
            for n in range(max(len(old), len(new)))
        ]
    else:
        return [] if type(old) is type(new) and old == new else [(path or "(all)", old, new)]
    differences: list[Change] = []
    for where, before, after in pairs:
        differences += changes(before, after, where)
    return differences


_PLAIN = re.compile(r"[^\W\d][\w-]*")


def _below(path: str, name: str) -> str:
    """A name that could be read as a path is quoted: `a.b` inside `a`, and a name `a.b`, are two things."""
    if not _PLAIN.fullmatch(name):
        return f"{path}[{json.dumps(name, ensure_ascii=False)}]"
    return f"{path}.{name}" if path else name
