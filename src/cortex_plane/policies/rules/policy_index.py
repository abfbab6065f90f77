"""Which rows could match a target, found by the literal text of their globs: the cost does not grow with the rows.

A row without a star is found by its target. One with stars is found by the longest text that it demands at the
beginning, at the end or in between, looked up among the parts of the target that have such a length. Where several
rows of one target follow each other, those after an unconditional one can never be reached and are left out.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from cortex_plane.kernel.conditions import Condition
from cortex_plane.kernel.globs import Glob
from cortex_plane.policies.model.policies import PolicyRow

MAX_CROWD = 1000
"""Rows that are found by the same text; each of them costs time with every call that has it."""

OF_ROW = 2048
"""Bytes that a row takes."""
OF_CONDITION = 64
"""Bytes that a compiled condition takes for each of its characters."""
OF_DETAILS = 8
"""And what a request shows of itself."""


@dataclass(frozen=True, slots=True)
class CompiledRow:
    position: int
    row: PolicyRow
    glob: Glob
    condition: Condition | None


Places = dict[str, list[CompiledRow]]


@dataclass(slots=True)
class _Targets:
    """The rows of one action type."""

    exact: Places = field(default_factory=dict)
    prefix: Places = field(default_factory=dict)
    suffix: Places = field(default_factory=dict)
    middle: Places = field(default_factory=dict)
    anything: list[CompiledRow] = field(default_factory=list)
    prefix_lengths: tuple[int, ...] = ()
    suffix_lengths: tuple[int, ...] = ()
    middle_lengths: tuple[int, ...] = ()
    closed: set[str] = field(default_factory=set)
    """Targets that have an unconditional row."""

    def add(self, compiled: CompiledRow) -> None:
        target = compiled.row.target
        if target in self.closed:
            return
        if compiled.condition is None:
            self.closed.add(target)
        self._place(compiled.glob).append(compiled)

    def _place(self, glob: Glob) -> list[CompiledRow]:
        if glob.exact:
            return self.exact.setdefault(glob.prefix, [])
        middle = max(glob.middles, key=len, default="")
        if not (glob.prefix or glob.suffix or middle):
            return self.anything
        if len(glob.prefix) >= max(len(glob.suffix), len(middle)):
            return self.prefix.setdefault(glob.prefix, [])
        if len(glob.suffix) >= len(middle):
            return self.suffix.setdefault(glob.suffix, [])
        return self.middle.setdefault(middle, [])

    def seal(self) -> None:
        self.prefix_lengths = tuple(sorted({len(text) for text in self.prefix}))
        self.suffix_lengths = tuple(sorted({len(text) for text in self.suffix}))
        self.middle_lengths = tuple(sorted({len(text) for text in self.middle}))

    def places(self, target: str) -> list[list[CompiledRow]]:
        found = [self.anything] if self.anything else []
        size = len(target)
        _collect(found, self.exact, (target,))
        _collect(found, self.prefix, (target[:n] for n in self.prefix_lengths if n <= size))
        _collect(found, self.suffix, (target[size - n :] for n in self.suffix_lengths if n <= size))
        if self.middle_lengths:
            parts = {target[at : at + n] for n in self.middle_lengths for at in range(size - n + 1)}
            _collect(found, self.middle, parts)
        return found

    def crowds(self) -> Iterator[tuple[str, list[CompiledRow]]]:
        for places in (self.exact, self.prefix, self.suffix, self.middle, {"*": self.anything}):
            yield from places.items()


def _collect(
    found: list[list[CompiledRow]], places: Places, keys: Iterator[str] | Sequence[str] | set[str]
) -> None:
    if places:
        for key in keys:
            rows = places.get(key)
            if rows is not None:
                found.append(rows)


class LevelIndex:
    """The rows of one level."""

    __slots__ = ("_by_action", "weight")

    def __init__(self, rows: Sequence[PolicyRow]) -> None:
        self._by_action: dict[str, _Targets] = {}
        conditions: dict[str, Condition] = {}
        for position, row in enumerate(rows):
            condition = None
            if row.condition is not None:
                condition = conditions.get(row.condition) or Condition.of(row.condition)
                conditions[row.condition] = condition
            targets = self._by_action.setdefault(row.action_type, _Targets())
            targets.add(CompiledRow(position, row, Glob.of(row.target), condition))
        for targets in self._by_action.values():
            targets.seal()
        details = sum(len(str(row.details)) for row in rows if row.details is not None)
        self.weight = OF_ROW * len(rows) + OF_CONDITION * sum(map(len, conditions)) + OF_DETAILS * details
        """Bytes of memory that it takes, about, and rather more than less."""

    def candidates(self, action_type: str, target: str) -> Iterator[CompiledRow]:
        """In the order of their file; their globs are still to be compared."""
        targets = self._by_action.get(action_type)
        if targets is None:
            return iter(())
        places = targets.places(target)
        if len(places) == 1:
            return iter(places[0])
        return heapq.merge(*places, key=_position)

    def crowds(self) -> Iterator[tuple[str, int]]:
        """Texts by which more rows are found than a verdict may cost."""
        for targets in self._by_action.values():
            for text, rows in targets.crowds():
                if len(rows) > MAX_CROWD:
                    yield text, len(rows)


def _position(compiled: CompiledRow) -> int:
    return compiled.position
