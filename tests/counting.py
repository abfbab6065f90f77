"""How much work something is, counted instead of timed: the same on every machine, however busy it is."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from cortex_plane.gates.rules import answers, index
from cortex_plane.gates.rules.index import expression


def instructions(work: Callable[[], object]) -> int:
    """Instructions of Python that are run: one that goes over a whole text in C counts as one."""
    work()  # what is made once is made
    count = 0

    def trace(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


class Searches:
    """What searching with regular expressions costs at most: instructions times characters, for each search."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.patterns: list[str] = []
        self.cost = 0
        for module in (index, answers):
            monkeypatch.setattr(module, "expression", self._expression)

    def _expression(self, pattern: str, *, case_sensitive: bool = True) -> Any:
        return _Counted(self, expression(pattern, case_sensitive=case_sensitive))


class _Counted:
    def __init__(self, searches: Searches, own: Any) -> None:
        self._searches, self._own = searches, own
        self.pattern, self.programsize = own.pattern, own.programsize

    def search(self, text: str) -> Any:
        self._searches.patterns.append(self.pattern)
        self._searches.cost += self.programsize * len(text)
        return self._own.search(text)
