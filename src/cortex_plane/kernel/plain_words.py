"""Text compared as people read it: whatever its case, its Unicode form, and what hides between its letters. And times as
people say them."""

from __future__ import annotations

import unicodedata
from datetime import UTC, datetime
from functools import lru_cache

_HIDDEN = ("Mn", "Me", "Cf", "Cc")
_BLANK = frozenset("\u115f\u1160\u3164\uffa0\u2800")
"""Letters and symbols that show nothing."""
_CONTROLS = {number: None for number in (*range(32), 127) if chr(number) not in "\t\n\r\v\f"}
_TWINS = str.maketrans(
    "аеорсухіјѕһԁԛԝвкмнтгпαεικνορτυχγβηωıɑɡ",
    "aeopcyxijshdqwbkmhtrnaeikvoptuxybnwiag",
)
"""Letters of other alphabets that look like ours."""


def normal(text: str, *, case_sensitive: bool = False) -> str:
    """In one form, without marks and hidden characters, with single spaces."""
    plain = text.translate(_CONTROLS) if text.isascii() else _uncovered(text)
    folded = plain if case_sensitive else _folded(plain)
    return " ".join(folded.split())


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
    folded = text.casefold()
    return folded if folded.isascii() else _uncovered(folded).casefold()


@lru_cache(maxsize=4096)
def normal_word(text: str) -> str:
    return normal(text)


def lookalike(plain: str) -> str:
    """A normal text with the letters that only look like ours as ours."""
    return plain if plain.isascii() else plain.translate(_TWINS)


def span(seconds: float, units: int = 2) -> str:
    """The largest units of a duration."""
    left = max(0, int(seconds))
    parts = []
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min"), (1, "s")):
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
        elif parts:
            break
    return " ".join(parts[:units]) or "0 s"


def short_span(seconds: float) -> str:
    """One unit, and tenths of a second where it is short."""
    return f"{seconds:.1f} s" if 0 <= seconds < 10 else span(seconds)


def stamp(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
