"""Which of many words a text holds: one pass over the text, however many there are and whatever they have in common.

Where some word begins, the longest that stands there is found by halving the sorted words; the others that stand there are
beginnings of it, each of which knows the next shorter one. A word that was found is not looked at again, nor are those that it
begins with. So a text costs its length, and each word that is found costs one step. All of it is in UTF-8: bytes are compared
at once, whatever the signs.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from typing import Generic, TypeVar

T = TypeVar("T")
FEW = 16
"""So many words are looked for one by one: that is faster than an index."""
BEGINNING = 4
"""Bytes by which one of many words is found."""
PIECE = 65_536
"""Bytes of a text that are looked at together, so that a long one takes no more room."""
WORD, FEW_WORD = 280, 200
"""Bytes that a word takes beside its letters."""
ROOT = 0
"""The empty word, with which every text begins."""


class Text:
    """A text to look for words in, with what is made of it once for all of them."""

    __slots__ = ("_pieces", "data", "plain")

    def __init__(self, plain: str) -> None:
        self.plain, self.data = plain, _bytes(plain)
        self._pieces: dict[int, set[bytes]] = {}

    def beginning(self, cut: int, wanted: AbstractSet[bytes]) -> Iterator[int]:
        """The places where one of these stands; all of them are of one length."""
        for start in range(0, len(self.data), PIECE):
            part = self.data[start : start + PIECE + cut - 1]
            there = wanted & self._cut(part, cut)
            if len(there) <= FEW:
                for each in sorted(there):
                    yield from (start + at for at in _each(part, each))
            else:
                ends = range(len(part) - cut + 1)
                yield from (start + at for at in ends if part[at : at + cut] in there)

    def _cut(self, part: bytes, cut: int) -> set[bytes]:
        known = self._pieces.get(cut)
        if known is None:
            known = {part[at : at + cut] for at in range(len(part) - cut + 1)}
            if len(part) == len(self.data):
                self._pieces[cut] = known
        return known


def _each(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


class Words(Generic[T]):
    """Words, each with what it stands for. ``whole``: found only where no letter and no digit stands beside them."""

    __slots__ = (
        "_beginnings", "_few", "_jump", "_longest", "_parent", "_short", "_shorter", "_values", "_whole", "_words",
    )  # fmt: skip

    def __init__(self, words: Mapping[str, T], *, whole: bool = False) -> None:
        self._whole = whole
        self._few: Mapping[str, T] = words if len(words) <= FEW and not whole else {}
        ordered = [] if self._few else sorted((_bytes(word), word) for word in words)
        self._words: list[bytes] = [b"", *(each for each, _ in ordered)]
        self._values: list[T] = [words[word] for _, word in ordered]
        self._longest = max(map(len, self._words))
        self._beginnings = {each[:BEGINNING] for each in self._words if len(each) >= BEGINNING}
        self._short: dict[int, dict[bytes, int]] = {}
        """By their lengths: those that are no longer than a beginning would be."""
        for number, word in enumerate(self._words):
            if 0 < len(word) < BEGINNING:
                self._short.setdefault(len(word), {})[word] = number
        self._link()

    def _link(self) -> None:
        """Each word with the longest other one that it begins with, and with one far before that."""
        words = self._words
        self._parent, self._jump = array("i", [ROOT]), array("i", [ROOT])
        self._shorter = array("i", [ROOT]) if self._whole else self._parent
        depth, before = array("i", [0]), [ROOT]
        for number in range(1, len(words)):
            word = words[number]
            while not word.startswith(words[before[-1]]):
                before.pop()
            parent = before[-1]
            before.append(number)
            depth.append(depth[parent] + 1)
            far = self._jump[parent]
            # Two jumps of one length make a longer one: so the way to any of them takes few steps.
            even = depth[parent] - depth[far] == depth[far] - depth[self._jump[far]]
            self._parent.append(parent)
            self._jump.append(self._jump[far] if even else parent)
            if self._whole:
                ends = not _sign(word, len(words[parent])).isalnum()
                # What follows a shorter word is the same in this word and in its parent.
                self._shorter.append(parent if ends else self._shorter[parent])

    def __bool__(self) -> bool:
        return bool(self._few or self._values)

    @property
    def room(self) -> int:
        """Bytes of memory that it takes, about, without its values."""
        few = sum(FEW_WORD + 4 * len(word) for word in self._few)
        return few + WORD * len(self._values) + sum(map(len, self._words))

    def within(self, text: Text) -> Iterator[tuple[str, T]]:
        """Each word once."""
        for word, value in self._few.items():
            if word in text.plain:
                yield word, value
        if self._values:
            for number in self._search(text):
                yield _text(self._words[number]), self._values[number - 1]

    def _search(self, text: Text) -> Iterator[int]:
        # One after the end, so that a word may stand there.
        letters = f"{_letters(text.plain)}0" if self._whole else ""
        seen = {ROOT}
        for at, number in self._places(text):
            if self._whole:
                if at and letters[at - 1] == "1":
                    continue
                if letters[at + len(self._words[number])] == "1":
                    number = self._shorter[number]
            while number not in seen:
                seen.add(number)
                yield number
                number = self._shorter[number]

    def _places(self, text: Text) -> Iterator[tuple[int, int]]:
        """Where words stand, and the longest that does; of the short ones each by itself."""
        for cut, words in self._short.items():
            for at in text.beginning(cut, words.keys()):
                yield at, words[text.data[at : at + cut]]
        if self._beginnings:
            for at in text.beginning(BEGINNING, self._beginnings):
                yield at, self._at(text.data, at)

    def _at(self, data: bytes, at: int) -> int:
        """The longest word that stands at a place. Whatever stands there is a beginning of the last word before it."""
        words, jump, parent = self._words, self._jump, self._parent
        number = bisect_right(words, data[at : at + self._longest]) - 1
        while not data.startswith(words[number], at):
            far = jump[number]
            number = parent[number] if data.startswith(words[far], at) else far
        return number


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogatepass")


def _sign(word: bytes, at: int) -> str:
    return word[at : at + 4].decode(errors="replace")[0]


def _letters(text: str) -> str:
    """For each byte of a text 1 where it is part of a letter or a digit, and 0 elsewhere."""
    return text.translate({ord(each): "01"[each.isalnum()] * len(_bytes(each)) for each in set(text)})
