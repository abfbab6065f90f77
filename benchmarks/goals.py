"""The goals of the sheet, printed in the part that measures them, and the figures of a run as JSON.

A part runs in a process of its own. Where ``CORTEX_BENCH_FIGURES`` names a file, it appends a line of JSON to it for each table, goal
and line of a plot; `python -m benchmarks --out FILE` collects them, and `python -m benchmarks.sheet FILE` writes the page.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

VARIABLE = "CORTEX_BENCH_FIGURES"
_SIGNS = {"≥": lambda figure, bound: figure >= bound, "≤": lambda figure, bound: figure <= bound}


def goal(work: str, compared: str, figure: float, sign: str, bound: float, unit: str = "×") -> bool:
    """Print a row of the issue's goals with what was measured; whether it is met."""
    met = bool(_SIGNS[sign](figure, bound))
    shown = f"{figure:,.2f}" if figure < 100 else f"{figure:,.0f}"
    print(
        f"{f'  goal: {compared}':58}{shown:>10}{unit:<3}{f'{sign} {bound:g}{unit}':>12}  {'met' if met else 'MISSED'}",
        flush=True,
    )
    record("goal", work=work, compared=compared, figure=figure, sign=sign, bound=bound, unit=unit, met=met)
    return met


def table(title: str, unit: str, values: Mapping[str, float]) -> None:
    """Keep a table that the part has printed itself."""
    record("table", title=title, unit=unit, values=dict(values))


def line(plot: str, name: str, points: Sequence[tuple[float, float]]) -> None:
    """One line of a plot: see `benchmarks.sheet` for its axes."""
    record("line", plot=plot, name=name, points=[list(point) for point in points])


def record(kind: str, **values: Any) -> None:
    path = os.environ.get(VARIABLE)
    if path:
        with open(path, "a") as file:  # noqa: PTH123 -- appended to by one process at a time
            file.write(json.dumps({"kind": kind, **values}) + "\n")


def percentiles(seconds: Sequence[float]) -> list[tuple[float, float]]:
    """Share of the waits, in percent, that took at most so many milliseconds."""
    known = sorted(seconds)
    return [(known[min(len(known) - 1, len(known) * share // 100)] * 1e3, float(share)) for share in range(5, 100, 5)]
