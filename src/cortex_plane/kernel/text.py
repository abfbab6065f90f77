"""Text for people and for comparison: plain words, spans of time, and hidden characters made visible."""

from __future__ import annotations

import functools
import json
import re
import unicodedata
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

_HIDDEN = ("Mn", "Me", "Cf", "Cc")
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters and symbols that show nothing."""
_CONTROLS = {number: None for number in (*range(32), 127) if chr(number) not in "\t\n\r\v\f"}
_TWINS = str.maketrans("аеорсухіјѕһԁԛԝвкмнтгпαεικνορτυχγβηωıɑɡ", "aeopcyxijshdqwbkmhtrnaeikvoptuxybnwiag")
"""Letters of other alphabets that look like ours."""


def normal(text: str, *, case_sensitive: bool = False) -> str:
    """In one form, without marks and hidden characters, with single spaces."""
    plain = text.translate(_CONTROLS) if text.isascii() else _uncovered(text)
    plain_text = plain if case_sensitive else _folded(plain)
    return " ".join(plain_text.split())


def _uncovered(text: str) -> str:
    apart = unicodedata.normalize("NFKD", text)
    hidden = {
        ord(each): None
        for each in set(apart)
        if (unicodedata.category(each) in _HIDDEN and each not in "\t\n\r\v\f") or each in _BLANK
    }
    return unicodedata.normalize("NFKC", apart.translate(hidden))


def _folded(text: str) -> str:
    """To fold the case may bring marks back, so those go again."""
    lower = text.casefold()
    return lower if lower.isascii() else _uncovered(lower).casefold()


@lru_cache(maxsize=4096)
def normal_word(text: str) -> str:
    return normal(text)


def lookalike(plain: str) -> str:
    """A normal text with the letters that only look like ours as ours."""
    return plain if plain.isascii() else plain.translate(_TWINS)


def span(seconds: float, units: int = 2) -> str:
    """The largest units of a duration."""
    remaining = max(0, int(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if remaining >= size:
            parts.append(f"{remaining // size} {unit}")
            remaining %= size
        elif parts:
            break
    return " ".join(parts[:units]) or "0 s"


def short_span(seconds: float) -> str:
    """One unit, and tenths of a second where it is short."""
    return f"{seconds:.1f} s" if 0 <= seconds < 10 else span(seconds)


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


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
