"""Where in its code an agent is: one scope for the function itself, one for each branch of a gather.

Within a scope the recorded operations must come again in the same order, each with the same kind, name and input. Whatever
else comes means that the code is not the one that was recorded, and nothing is run by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from contextvars import ContextVar
from dataclasses import dataclass, field

from cortex_plane.jobs.model.journal import MAX_KEY, ContextMisused, EntryKind, JournalEntry, scope_of


class Unwind(BaseException):
    """Takes the agent's function back to its caller: it waits, or its attempt is over. Not for `except Exception`."""


class Mismatch(Exception):
    """The code does something else than what was recorded."""


@dataclass(eq=False, slots=True)
class Scope:
    prefix: str
    recorded: list[JournalEntry] = field(default_factory=list)
    visited: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    busy: str | None = None
    """The operation under way: a branch does one thing after the other."""
    unwound: bool = False
    """It was taken back: whatever its code still tries, in a `finally` or behind an `except`, does not begin."""

    def visit(self, kind: EntryKind, name: str, input_hash: str) -> tuple[str, JournalEntry | None]:
        """The key of the operation that comes now, and what was recorded of it."""
        key = f"{self.prefix}{name}#{self.counts[name]}"
        if len(key) > MAX_KEY:
            raise ContextMisused(
                f"The key of `{name}` is longer than {MAX_KEY} characters.", hint="Nest less."
            )
        expected = self.recorded[self.visited] if self.visited < len(self.recorded) else None
        if expected is not None:
            _compare(expected, key, kind, input_hash)
            self.visited += 1
        self.counts[name] += 1
        return key, expected

    @property
    def unvisited(self) -> JournalEntry | None:
        return self.recorded[self.visited] if self.visited < len(self.recorded) else None


def _compare(expected: JournalEntry, key: str, kind: EntryKind, input_hash: str) -> None:
    if expected.key != key or expected.kind is not kind:
        raise Mismatch(f"expected {said(expected.kind, expected.key)}, and {said(kind, key)} came")
    if expected.input_hash != input_hash:
        raise Mismatch(f"expected {said(kind, key)} with the input that was recorded, and another input came")


def said(kind: EntryKind, key: str) -> str:
    return f"{kind} `{key}`"


class Scopes:
    """All scopes of one attempt, each with what was recorded of it."""

    def __init__(self, entries: Iterable[JournalEntry]) -> None:
        self._recorded: dict[str, list[JournalEntry]] = {}
        for entry in sorted(entries, key=lambda each: each.position):
            self._recorded.setdefault(scope_of(entry.key), []).append(entry)
        self.opened: dict[str, Scope] = {}

    def open(self, prefix: str) -> Scope:
        scope = self.opened[prefix] = Scope(prefix, self._recorded.get(prefix, []))
        return scope

    def unvisited(self) -> JournalEntry | None:
        """The first operation that was recorded and did not come again."""
        left = [entry for scope in self.opened.values() if (entry := scope.unvisited) is not None]
        return min(left, key=lambda entry: entry.position, default=None)


def last_round(entries: Iterable[JournalEntry]) -> int:
    """How often the function began again, because somebody said more in its conversation."""
    return max(
        (int(e.key[1:]) for e in entries if e.key.startswith("/") and scope_of(e.key) == "/"), default=0
    )


def round_prefix(number: int) -> str:
    return f"/{number}/" if number else ""


current: ContextVar[Scope] = ContextVar("scope")
"""The scope of whoever runs: each branch is a task with a context of its own."""
