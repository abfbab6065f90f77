"""Globs: `*` matches anything, dots included, also nothing; every other character stands for itself."""

from __future__ import annotations

from dataclasses import dataclass

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
            found = text.find(part, at, end)
            if found < 0:
                return False
            at = found + len(part)
        return True

    def covers(self, pattern: str) -> bool:
        """Whether whatever ``pattern`` matches is matched here too: its stars are met by stars alone."""
        return self.matches(pattern)
