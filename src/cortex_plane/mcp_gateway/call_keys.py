"""Keys of calls whose client gives them no id: the later identical call finds the decision about the earlier one, and an identical call
after one that is over is another call."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from cortex_plane.kernel.canonical import canonical

_KEY = re.compile(r":call-([0-9a-f]{32})-([0-9]{1,9})(?:-[0-9a-f]+)?$")
MAX_SHARED = 32
"""Keys of identical calls that another process finds again: it asks for one after the other."""
MAX_DIGESTS = 10_000
"""Different calls that a gateway remembers; of the oldest it forgets how many there were."""


@dataclass(slots=True)
class CallTurn:
    """One identical call of several, by its number."""

    digest: str
    number: int
    process: str = ""
    is_known: bool = False
    """It was asked about before, in this process."""
    is_over: bool = False
    """Its answer was final: an identical call that comes later is another one."""

    @property
    def key(self) -> str:
        suffix = "" if self.number < MAX_SHARED else f"-{self.process}"
        return f"call-{self.digest}-{self.number}{suffix}"


@dataclass(slots=True)
class _Turns:
    over: set[int] = field(default_factory=set)
    under_way: set[int] = field(default_factory=set)
    known: set[int] = field(default_factory=set)
    first: int = 0
    """Below it all are over."""

    def end(self, number: int) -> None:
        self.over.add(number)
        while self.first in self.over:
            self.over.discard(self.first)
            self.known.discard(self.first)
            self.first += 1


class CallKeys:
    def __init__(self, process: str) -> None:
        self._process = process
        self._turns: OrderedDict[str, _Turns] = OrderedDict()

    @contextlib.contextmanager
    def turn(self, session: str, tool: str, arguments: dict[str, Any]) -> Iterator[CallTurn]:
        """The first number that is neither over nor under way. Whoever takes it says by ``is_over`` whether its answer was final."""
        digest = hashlib.sha256(canonical([session, tool, arguments])).hexdigest()[:32]
        turns = self._turns.setdefault(digest, _Turns())
        self._turns.move_to_end(digest)
        number = turns.first
        while number in turns.over or number in turns.under_way:
            number += 1
        turns.under_way.add(number)
        turn = CallTurn(digest, number, self._process, is_known=number in turns.known)
        turns.known.add(number)
        try:
            yield turn
        finally:
            turns.under_way.discard(number)
            if turn.is_over:
                turns.end(number)
            while len(self._turns) > MAX_DIGESTS:
                self._turns.popitem(last=False)

    def end(self, key: str) -> None:
        """The call of this key, as the plane has it, is over: an identical call is another one from now on."""
        if (match := _KEY.search(key)) is not None and (turns := self._turns.get(match[1])) is not None:
            number = int(match[2])
            if number >= turns.first:
                turns.end(number)
