"""Interleaved rounds of several engines on one server, each in a database of its own.

A column is a name and a workload, ``async (url) -> rate``. Ours is one more column:

    medians = await interleaved(server.url(), {"Cortex Plane": ours, **peer_columns("ten_step_jobs", 64, 16)}, rounds=5)
"""

from __future__ import annotations

import functools
import importlib
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AsyncExitStack

from benchmarks.measuring import analyze
from benchmarks.peers.databases import fresh_database

Workload = Callable[[str], Awaitable[float]]

STEPPERS = {"LangGraph": "langgraph_steps", "DBOS": "dbos_steps", "Absurd": "absurd_steps"}


def peer_columns(workload: str, count: int, concurrency: int) -> dict[str, Workload]:
    """``side_effecting_step`` or ``ten_step_jobs`` of each peer that is installed."""
    columns: dict[str, Workload] = {}
    for name, module in STEPPERS.items():
        try:
            known = importlib.import_module(f"benchmarks.peers.{module}")
        except ImportError as missing:
            print(f"{name} is left out: {missing}", file=sys.stderr)
            continue
        columns[name] = functools.partial(getattr(known, workload), n=count, concurrency=concurrency)
    return columns


async def interleaved(admin_url: str, columns: Mapping[str, Workload], *, rounds: int) -> dict[str, float]:
    """The median rate of each, measured in turn so that a slow moment of the machine meets all of them."""
    rates: dict[str, list[float]] = {name: [] for name in columns}
    async with AsyncExitStack() as stack:
        urls = {
            name: await stack.enter_async_context(fresh_database(admin_url, f"column{number}"))
            for number, name in enumerate(columns)
        }
        for _ in range(rounds):
            for name, workload in columns.items():
                rates[name].append(await workload(urls[name]))
                await analyze(urls[name])
    return {name: statistics.median(known) for name, known in rates.items()}
