"""Which of many keyword triggers an input fires. Words: one pass over the text, however many there are. Regular expressions:
one search for each, so their size together, and the text that they read, have an end.

Words are found anywhere in the text, also inside longer words, as people read it: in whatever case and Unicode form. A phrase
is found as whole words. Regular expressions run in linear time, over the text as it is and as people read it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

from cortex_plane.gates.model.atlases import Gate, MatchMode
from cortex_plane.gates.rules.word_index import Text, Words
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.extras import extra
from cortex_plane.kernel.plain_words import normal

MAX_EXPRESSIONS = 200
"""Regular expressions of one atlas."""
MAX_MEMORY = 256 * 1024
"""Bytes that one may take; whatever needs more is refused when it is published."""
MAX_PROGRAM = 2_000
"""Instructions of all regular expressions of one atlas, and of those of one checkpoint's questions."""
EFFORT = 12_000_000
"""Instructions times characters: what searching one text with all expressions of a session costs at most. One of them takes
about 8 ns where an expression is as unkind as can be, so a text holds up everybody else for 0.1 s at most."""
SEARCHED = 20_000
"""Characters of a text that regular expressions read at most: of a longer one its beginning and its end, half of it each."""
READINGS = 2
"""As it is, and as people read it."""

PLACE = 130
"""Bytes that a word of a gate takes beside the word."""

_Place = tuple[int, int]
"""A gate, and which of its words it is."""
_Kind = tuple[bool, bool]
"""Whether its case counts, and whether it is a phrase."""


class Expressions(NamedTuple):
    """Of one atlas: each pattern once, with the gates that it is of."""

    found: dict[tuple[str, bool], tuple[Any, list[int]]]

    @property
    def program(self) -> int:
        return sum(compiled.programsize for compiled, _ in self.found.values())


class KeywordIndex:
    """The keyword gates of some atlases."""

    def __init__(self, gates: Iterable[Gate]) -> None:
        self._gates: list[Gate] = []
        self._needed: list[int] = []
        self._expressions: dict[str, Expressions] = {}
        """By atlas."""
        self._places = 0
        words: dict[_Kind, dict[str, list[_Place]]] = {}
        for gate in gates:
            self._add(gate, words)
        self._words = {
            kind: Words({word: tuple(places) for word, places in each.items()}, whole=kind[1])
            for kind, each in words.items()
        }

    def _add(self, gate: Gate, words: dict[_Kind, dict[str, list[_Place]]]) -> None:
        number, trigger = len(self._gates), gate.trigger
        self._gates.append(gate)
        if trigger.match_mode is MatchMode.REGEX:
            self._needed.append(1)
            self._add_expressions(number, gate)
            return
        plain = dict.fromkeys(
            each for word in trigger.patterns if (each := normal(word, case_sensitive=trigger.case_sensitive))
        )
        self._needed.append(len(plain) if trigger.match_mode is MatchMode.ALL else 1)
        of_kind = words.setdefault((trigger.case_sensitive, trigger.match_mode is MatchMode.PHRASE), {})
        for position, word in enumerate(plain):
            of_kind.setdefault(word, []).append((number, position))
        self._places += len(plain)

    def _add_expressions(self, number: int, gate: Gate) -> None:
        case = gate.trigger.case_sensitive
        known = self._expressions.setdefault(gate.atlas_id, Expressions({})).found
        for pattern in dict.fromkeys(gate.trigger.patterns):
            if (pattern, case) not in known:
                known[pattern, case] = expression(pattern, case_sensitive=case), []
            known[pattern, case][1].append(number)

    @property
    def read(self) -> dict[str, int]:
        """By atlas: characters of a text that its expressions read. What there is time for is shared out evenly between atlases,
        so that one with large expressions reads less itself, and takes little from the others."""
        share = EFFORT // (READINGS * max(1, len(self._expressions)))
        return {id: min(SEARCHED, share // each.program) for id, each in self._expressions.items()}

    @property
    def room(self) -> int:
        """Bytes of memory that it takes, about: an expression may take as much as it is given."""
        expressions = sum(len(each.found) for each in self._expressions.values())
        words = sum(each.room for each in self._words.values())
        return words + PLACE * (self._places + len(self._gates)) + MAX_MEMORY * expressions

    def find(self, text: str) -> dict[int, tuple[Gate, tuple[str, ...]]]:
        """The gates that the text fires, with what was found of each."""
        seen: dict[int, dict[int, str]] = {}
        plain = {case: Text(normal(text, case_sensitive=case)) for case in {case for case, _ in self._words}}
        for (case, _), words in self._words.items():
            for word, places in words.within(plain[case]):
                for number, position in places:
                    seen.setdefault(number, {})[position] = word
        if self._expressions:
            self._search(text, seen)
        return {
            number: (self._gates[number], tuple(found.values()))
            for number, found in sorted(seen.items())
            if len(found) >= self._needed[number]
        }

    def _search(self, text: str, seen: dict[int, dict[int, str]]) -> None:
        plain = normal(writable(text), case_sensitive=True)
        for id, most in self.read.items():
            # Before and after it is made plain a text need not be cut at the same place: each reading is cut by itself.
            parts = dict.fromkeys([*map(writable, _read(text, most)), *_read(plain, most)])
            for compiled, numbers in self._expressions[id].found.values():
                if any(compiled.search(part) for part in parts):
                    for number in numbers:
                        seen.setdefault(number, {}).setdefault(0, compiled.pattern)


def _read(text: str, most: int) -> list[str]:
    if len(text) <= most:
        return [text]
    half = most // 2
    return [text[:half], text[-half:]]


def writable(text: str) -> str:
    """Without half characters, which no expression can read."""
    return text if text.isascii() else text.encode(errors="replace").decode()


_NOT_READ = "Look-around and back-references are not read: they may take for ever. Write it without them."
_TOO_LARGE = "Repeat less, or name fewer characters: [a-z] takes a hundredth of what \\pL does."


@lru_cache(maxsize=128)
def expression(pattern: str, *, case_sensitive: bool = True) -> Any:
    """A regular expression of somebody else: it takes time in proportion to the text, and no more room than there is."""
    with extra("server"):
        import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = case_sensitive
    options.max_mem = MAX_MEMORY
    # Groups are never asked for, and to remember them takes five times as long.
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise InvalidInput(
            f"`{pattern[:100]}` is not a regular expression that can be used: {said}.",
            code="invalid_pattern",
            hint=_TOO_LARGE if "too large" in said else _NOT_READ,
        ) from None
