"""Values of a manifest, each as its key wants it: what is wrong becomes a fault with its line, never an exception."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from enum import StrEnum
from typing import Any, TypeVar

from cortex_plane.kernel.documents import Faults, Mapping, Node, Scalar, Sequence

_WHOLE = re.compile(r"[0-9]{1,9}")
_NUMBER = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?|0x[0-9a-fA-F]+|0o[0-7]+")
_DURATION = re.compile(r"(?:[0-9]{1,7}[smhd])+")
_PART = re.compile(r"([0-9]+)([smhd])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_WORDS = {"true", "false", "null", "~", ""}
MAX_LIST = 100

Choice = TypeVar("Choice", bound=StrEnum)


class Values:
    def __init__(self, faults: Faults, longest_seconds: int, instead: MappingOf[str, str]) -> None:
        """``instead``: what to write where somebody uses a word that is not ours."""
        self._faults = faults
        self._longest = longest_seconds
        self._instead = instead

    @property
    def faults(self) -> Faults:
        return self._faults

    def fault(self, line: int, message: str) -> None:
        self._faults.add(line, message)

    def known_keys(self, node: Mapping, known: tuple[str, ...], what: str) -> None:
        for key, line in node.lines.items():
            if key in known:
                continue
            if key in self._instead:
                self._faults.add(line, f"`{key}` is not a key of {what}; use {self._instead[key]}.")
            else:
                self._faults.add(line, f"`{key[:100]}` is not a key of {what}; known are {', '.join(known)}.")

    def text(self, node: Node, key: str) -> str | None:
        if not isinstance(node, Scalar):
            self._faults.add(node.line, f"`{key}` must be a text.")
            return None
        if node.plain and (node.text.lower() in _WORDS or _NUMBER.fullmatch(node.text)):
            said = f"`{node.text}`" if node.text else "nothing"
            self._faults.add(node.line, f"`{key}` must be a text, and this is {said}: put it into quotes.")
            return None
        return node.text

    def pattern(self, item: Mapping, key: str, pattern: re.Pattern[str], longest: int, allowed: str) -> str:
        node = item.items.get(key)
        text = self.text(node, key) if node is not None else None
        if node is None or text is None:
            return ""
        if len(text) > longest or not pattern.fullmatch(text):
            self._faults.add(node.line, f"`{key}` must be {allowed}; at most {longest} characters.")
        return text

    def choice(self, item: Mapping, key: str, kind: type[Choice]) -> Choice | None:
        node = item.items.get(key)
        if node is None:
            return None
        text = node.text if isinstance(node, Scalar) else None
        if text in tuple(kind):
            return kind(text)
        given = f", not `{text[:50]}`" if text else ""
        self._faults.add(node.line, f"`{key}` must be one of {', '.join(kind)}{given}.")
        return None

    def boolean(self, item: Mapping, key: str) -> bool | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.plain and node.text in ("true", "false"):
            return node.text == "true"
        self._faults.add(node.line, f"`{key}` must be true or false.")
        return None

    def number(self, item: Mapping, key: str, largest: int, smallest: int = 0) -> int | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and node.plain and _WHOLE.fullmatch(node.text):
            number = int(node.text)
            if smallest <= number <= largest:
                return number
        self._faults.add(node.line, f"`{key}` must be a whole number from {smallest} to {largest}.")
        return None

    def duration(self, item: Mapping, key: str, shortest: int) -> int | None:
        node = item.items.get(key)
        if node is None:
            return None
        if isinstance(node, Scalar) and _DURATION.fullmatch(node.text):
            seconds = sum(int(amount) * _UNITS[unit] for amount, unit in _PART.findall(node.text))
            if shortest <= seconds <= self._longest:
                return seconds
        self._faults.add(
            node.line,
            f"`{key}` must be a time up to {self._longest // _UNITS['d']}d, such as 90s, 30m, 2h or 1d12h.",
        )
        return None

    def listed(self, item: Mapping, key: str, read_one: Callable[[Node], Any]) -> list[Any]:
        node = item.items.get(key)
        if node is None:
            return []
        if not isinstance(node, Sequence):
            self._faults.add(node.line, f"`{key}` must be a list: [one, another].")
            return []
        if len(node.items) > MAX_LIST:
            self._faults.add(node.line, f"`{key}` has {len(node.items)} entries; the limit is {MAX_LIST}.")
            return []
        return [found for one in node.items if (found := read_one(one)) is not None]
