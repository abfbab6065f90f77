"""Text compared as people read it: whatever its case, its Unicode form, and what hides between its letters."""

from __future__ import annotations

import unicodedata
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
