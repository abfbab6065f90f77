"""Globs: one matcher for every target and action, and an index over many of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Generic, NamedTuple, TypeVar

STAR = "*"


@dataclass(frozen=True, slots=True)
class Glob:
    """A pattern taken apart once: what a text must begin with, contain in this order, and end with."""

    prefix: str
    middles: tuple[str, ...]
    suffix: str
    exact: bool
    """No star in it: the prefix is the whole text."""

    @classmethod
    def of(cls, pattern: str) -> Glob:
        parts = pattern.split(STAR)
        if len(parts) == 1:
            return cls(pattern, (), "", exact=True)
        return cls(parts[0], tuple(part for part in parts[1:-1] if part), parts[-1], exact=False)

    def matches(self, text: str) -> bool:
        """One pass from left to right: the first place of each part leaves the most room for the next."""
        if self.exact:
            return text == self.prefix
        at, end = len(self.prefix), len(text) - len(self.suffix)
        if end < at or not text.startswith(self.prefix) or not text.endswith(self.suffix):
            return False
        for part in self.middles:
            position = text.find(part, at, end)
            if position < 0:
                return False
            at = position + len(part)
        return True

    def overlaps(self, other: Glob) -> bool:
        """Whether some text matches both. Between beginning and end of two globs with stars there is room for all parts."""
        if self.exact or other.exact:
            return other.matches(self.prefix) if self.exact else self.matches(other.prefix)
        begins = self.prefix.startswith(other.prefix) or other.prefix.startswith(self.prefix)
        return begins and (self.suffix.endswith(other.suffix) or other.suffix.endswith(self.suffix))


T = TypeVar("T")
_KINDS = range(3)


@lru_cache(maxsize=4096)
def glob(pattern: str) -> Glob:
    """Taken apart once: for the patterns that sessions remember."""
    return Glob.of(pattern)


def _literals(pattern: Glob) -> tuple[str, str, str]:
    """What a text begins with, ends with, and has in between."""
    return pattern.prefix, pattern.suffix, max(pattern.middles, key=len, default="")


class _Held(NamedTuple, Generic[T]):
    """A glob, and all that stand under it, each with its number."""

    glob: Glob
    values: list[tuple[int, T]]


class GlobIndex(Generic[T]):
    """Values under globs; those of the globs that match come out in the order in which they went in."""

    __slots__ = ("_anything", "_exact", "_lengths", "_parts", "size")

    def __init__(self, entries: Iterable[tuple[str, T]] = ()) -> None:
        self.size = 0
        self._exact: dict[str, list[tuple[int, T]]] = {}
        self._anything: list[tuple[int, T]] = []
        self._parts: tuple[dict[str, list[_Held[T]]], ...] = ({}, {}, {})
        self._lengths: tuple[set[int], ...] = (set(), set(), set())
        by_glob: dict[str, list[tuple[int, T]]] = {}
        for pattern, value in entries:
            number, self.size = self.size, self.size + 1
            (by_glob if STAR in pattern else self._exact).setdefault(pattern, []).append((number, value))
        self._spread([_Held(Glob.of(pattern), values) for pattern, values in by_glob.items()])

    def _spread(self, entries: list[_Held[T]]) -> None:
        """Each under the rarest of its literals, so that few globs are tried for a text whatever they have in common."""
        common = tuple(Counter[str]() for _ in _KINDS)
        for entry in entries:
            for kind, literal in enumerate(_literals(entry.glob)):
                common[kind][literal] += 1
        for entry in entries:
            literals = _literals(entry.glob)
            usable = [kind for kind in _KINDS if literals[kind]]
            if not usable:
                self._anything += entry.values
                continue
            kind = min(usable, key=lambda each: (common[each][literals[each]], -len(literals[each])))
            self._parts[kind].setdefault(literals[kind], []).append(entry)
            self._lengths[kind].add(len(literals[kind]))

    def find(self, text: str) -> list[T]:
        values = [*self._anything, *self._exact.get(text, ())]
        for entry in self._candidates(text):
            if entry.glob.matches(text):
                values += entry.values
        if len(values) > 1:
            values.sort(key=lambda each: each[0])
        return [value for _, value in values]

    def _candidates(self, text: str) -> Iterator[_Held[T]]:
        size = len(text)
        starts, ends, middles = self._parts
        for length in self._lengths[0]:
            if length <= size:
                yield from starts.get(text[:length], ())
        for length in self._lengths[1]:
            if length <= size:
                yield from ends.get(text[size - length :], ())
        if middles:
            for part in {text[at : at + n] for n in self._lengths[2] for at in range(size - n + 1)}:
                yield from middles.get(part, ())
