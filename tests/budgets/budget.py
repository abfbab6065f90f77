"""Compares counts with budgets.toml, and says what a count that does not fit is made of."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

FILE = Path(__file__).parent / "budgets.toml"
COUNTS = ("round_trips", "commits", "rows", "wal_bytes", "sequential_scans", "python_calls")

SEVERAL_TRANSACTIONS = 50_000
"""Bytes that only an operation of many transactions writes: more rows miss their page, and more at a time."""

Budgets = Mapping[str, Mapping[str, int]]


def load_budgets() -> Budgets:
    known: Budgets = tomllib.loads(FILE.read_text())
    return known


def slack(count: str, budget: int) -> int:
    """How far a figure may be from its budget. Bytes depend on whether a row still fits its page; the rest does not wobble, but not
    every new function of Python is worth a new figure."""
    if count == "wal_bytes":
        return budget // (33 if budget < SEVERAL_TRANSACTIONS else 20) + 100
    if count == "python_calls":
        return budget // 50
    return 0


def fault(operation: str, count: str, figure: int, budget: int, parts: Sequence[str]) -> str | None:
    """What is wrong with a figure. One that fell is wrong too: the budget would let it grow again unseen."""
    allowed = slack(count, budget)
    if abs(figure - budget) <= allowed:
        return None
    course = "exceeds" if figure > budget else "is less than"
    lines = [
        f"{operation}: {count} is {figure}, which {course} its budget of {budget}{f' ± {allowed}' if allowed else ''}",
        *(f"    {part}" for part in parts),
    ]
    return "\n".join(lines)
