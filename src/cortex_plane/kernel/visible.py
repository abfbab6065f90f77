"""What a reader would not see, or would see wrongly, made visible as its code point."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from typing import Any

SUSPECT = re.compile(r"[^\x20-\x7e\n\u00a1-\u00ac\u00ae-\u02ff]")
"""Everything that might be hidden; the rest is plain and is never looked at twice."""
_UNSEEN_CATEGORIES = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
# Letters and marks by their category, and yet nothing is drawn: fillers, joiners, variation selectors, blank Braille.
_BLANKS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u180b\u180c\u180d\u180f\u2800\u3164\uffa0")


@functools.lru_cache(maxsize=4096)
def is_hidden(character: str) -> bool:
    """Whether a reader would not see it, or would see the text around it changed."""
    if character in "\n ":
        return False
    category = unicodedata.category(character)
    if category in _UNSEEN_CATEGORIES or character in _BLANKS:
        return True
    point = ord(character)
    selector = 0xFE00 <= point <= 0xFE0F or 0xE0100 <= point <= 0xE01EF
    return selector or category == "Zs"


def hidden_in(value: Any) -> bool:
    """Whether a JSON value has a hidden character anywhere, keys included."""
    text = json.dumps(value, ensure_ascii=False)
    return any(is_hidden(match.group()) for match in SUSPECT.finditer(text))


def escaped_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that means exactly the same, with every hidden character as its escape. It can be edited and read back."""
    separators = (",", ":") if indent is None else (",", ": ")
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, indent=indent, separators=separators)
    return SUSPECT.sub(lambda m: json.dumps(m.group())[1:-1] if is_hidden(m.group()) else m.group(), text)


def marked(text: str) -> str:
    """Plain text with every hidden character as a mark: ⟨U+202E⟩."""
    return SUSPECT.sub(lambda m: f"⟨U+{ord(m.group()):04X}⟩" if is_hidden(m.group()) else m.group(), text)
