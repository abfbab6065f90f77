"""Write the figures of one run into docs/why: tables between the marks of benchmarks.md, and plots as SVG beside it.

python -m benchmarks --out run.json && python -m benchmarks.sheet run.json
"""

from __future__ import annotations

import argparse
import html
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "why"
PAGE = "benchmarks.md"
BEGIN, END = "<!-- figures of one run: written by `python -m benchmarks.sheet` -->", "<!-- end of the figures -->"


@dataclass(frozen=True)
class Plot:
    name: str
    title: str
    x: str
    y: str
    log_x: bool = False
    log_y: bool = False

    @property
    def file(self) -> str:
        return f"benchmarks_{self.name}.svg"


PLOTS = (
    Plot("steps", "Durable steps by concurrency", "jobs at once", "steps per second", log_x=True),
    Plot("resume", "From approval to the next completed step", "milliseconds", "percent of the waits", log_x=True),
    Plot("starts", "From submission to the first step", "milliseconds", "percent of the waits", log_x=True),
    Plot("bytes", "Log written by a job that grows", "steps", "MB", log_y=True),
    Plot(
        "growth",
        "Time of an operation by the size of the plane",
        "jobs in the plane",
        "milliseconds",
        log_x=True,
        log_y=True,
    ),
)

Line = tuple[str, list[tuple[float, float]]]

# Plots ------------------------------------------------------------------------------------------------------------

_WIDTH, _HEIGHT, _LEFT, _TOP, _RIGHT, _BOTTOM = 760, 400, 64, 56, 220, 48
_COLOURS = ("#3b82f6", "#f59e0b", "#10b981", "#ef4444", "#8b5cf6", "#a16207", "#ec4899", "#6b7280", "#06b6d4", "#84cc16")  # fmt: skip
_STYLE = """\
<style>
  text { font: 12px system-ui, sans-serif; fill: #1f2328 }
  .title { font-size: 15px; font-weight: 600 }
  .grid { stroke: #8c959f; stroke-opacity: .35 }
  .axis { stroke: #59636e }
  @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .axis { stroke: #9198a1 } }
</style>"""


@dataclass(frozen=True)
class Scale:
    """From figures to places on one axis."""

    low: float
    high: float
    start: float
    end: float
    log: bool

    def place(self, figure: float) -> float:
        low, high, at = (
            (math.log10(max(n, 1e-9)) for n in (self.low, self.high, figure))
            if self.log
            else (self.low, self.high, figure)
        )
        return self.start + (self.end - self.start) * (at - low) / ((high - low) or 1)

    def ticks(self) -> list[float]:
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            few = powers[-1] - powers[0] <= 2
            known = [factor * 10.0**power for power in powers for factor in ((1, 2, 5) if few else (1,))]
            return [tick for tick in known if self.low * 0.999 <= tick <= self.high * 1.001]
        step = 10.0 ** math.floor(math.log10((self.high - self.low) or 1))
        if (self.high - self.low) / step < 4:
            step /= 2
        return [step * n for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1)]


def _scale(figures: Sequence[float], start: float, end: float, *, log: bool) -> Scale:
    known = [figure for figure in figures if figure > 0] if log else [0.0, *figures]
    low, high = min(known, default=1.0), max(known, default=1.0)
    return Scale(low, high if high > low else low * 2 or 1.0, start, end, log)


def draw(plot: Plot, lines: Sequence[Line]) -> str:
    """The plot as SVG: lines with points, axes with units, readable on light and on dark pages."""
    points = [point for _, known in lines for point in known]
    across = _scale([x for x, _ in points], _LEFT, _WIDTH - _RIGHT, log=plot.log_x)
    up = _scale([y for _, y in points], _HEIGHT - _BOTTOM, _TOP, log=plot.log_y)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(plot.title)}">',
            _STYLE,
            f'<text class="title" x="{_LEFT}" y="22">{html.escape(plot.title)}</text>',
            *_axes(plot, across, up, sorted({x for x, _ in points})),
            *(part for number, known in enumerate(lines) for part in _line(number, known, across, up)),
            "</svg>\n",
        ]
    )


def _axes(plot: Plot, across: Scale, up: Scale, measured: Sequence[float]) -> Iterator[str]:
    # Where only a few values were measured, they are the ticks.
    for tick in across.ticks() if len(measured) > 5 or 0 in measured else measured:
        x = across.place(tick)
        yield f'<line class="grid" x1="{x:.0f}" x2="{x:.0f}" y1="{_TOP}" y2="{up.start}"/>'
        yield f'<text x="{x:.0f}" y="{up.start + 16}" text-anchor="middle">{_number(tick)}</text>'
    for tick in up.ticks():
        y = up.place(tick)
        yield f'<line class="grid" x1="{_LEFT}" x2="{across.end}" y1="{y:.0f}" y2="{y:.0f}"/>'
        yield f'<text x="{_LEFT - 6}" y="{y + 4:.0f}" text-anchor="end">{_number(tick)}</text>'
    yield f'<path class="axis" fill="none" d="M{_LEFT} {_TOP}V{up.start}H{across.end}"/>'
    middle = (_LEFT + across.end) / 2
    yield f'<text x="{middle:.0f}" y="{_HEIGHT - 10}" text-anchor="middle">{html.escape(plot.x)}</text>'
    yield f'<text x="{_LEFT}" y="{_TOP - 10}">{html.escape(plot.y)}</text>'


def _line(number: int, line: Line, across: Scale, up: Scale) -> Iterator[str]:
    name, known = line
    colour = _COLOURS[number % len(_COLOURS)]
    places = [(across.place(x), up.place(y)) for x, y in known if (x > 0 or not across.log) and (y > 0 or not up.log)]
    path = "L".join(f"{x:.1f} {y:.1f}" for x, y in places)
    dashes = "" if number < len(_COLOURS) else ' stroke-dasharray="5 3"'
    if path:
        yield f'<path fill="none" stroke="{colour}" stroke-width="2"{dashes} d="M{path}"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'
    at = _TOP + 14 * number
    yield f'<rect x="{across.end + 12}" y="{at - 7}" width="10" height="4" fill="{colour}"/>'
    yield f'<text x="{across.end + 26}" y="{at}">{html.escape(name)}</text>'


def _number(figure: float) -> str:
    return f"{figure:,.0f}" if figure >= 10 or figure == int(figure) else f"{figure:g}"


# The page ---------------------------------------------------------------------------------------------------------


def lines_of(run: dict[str, Any], plot: str) -> list[Line]:
    return [
        (figure["name"], [(x, y) for x, y in figure["points"]])
        for part in run["parts"]
        for figure in part["figures"]
        if figure["kind"] == "line" and figure["plot"] == plot
    ]


def write_page(run: dict[str, Any]) -> str:
    """The figures as Markdown."""
    head = (
        f"One run of `make bench` at commit `{run['commit']}` on {run['date']}: {run['cores']} cores, PostgreSQL {run['postgres']},"
        f" fsync on."
    )
    parts = [head + (" A smoke run: its figures say nothing." if run["smoke"] else "")]
    parts.append("\n".join(_goals(run)))
    for plot in PLOTS:
        if lines_of(run, plot.name):
            parts.append(f"![{plot.title}]({plot.file})")
    for part in run["parts"]:
        for figure in part["figures"]:
            if figure["kind"] == "table":
                parts.append("\n".join(_table(figure)))
    failed = [part["part"] for part in run["parts"] if part["code"] not in (0, 3)]
    if failed:
        parts.append(f"These parts failed and have no figures: {', '.join(failed)}.")
    return "\n\n".join(parts)


def _goals(run: dict[str, Any]) -> Iterator[str]:
    yield "| work | compared | measured | goal | |"
    yield "|---|---|---|---|---|"
    for part in run["parts"]:
        for figure in part["figures"]:
            if figure["kind"] == "goal":
                unit, shown = figure["unit"], _figure(figure["figure"])
                goal = f"{figure['sign']} {figure['bound']:g}{unit}"
                yield f"| {figure['work']} | {figure['compared']} | {shown}{unit} | {goal} | {'met' if figure['met'] else '**missed**'} |"


def _table(figure: dict[str, Any]) -> Iterator[str]:
    yield f"| {figure['title']} | {figure['unit']} |"
    yield "|---|---|"
    for name, value in figure["values"].items():
        yield f"| {name} | {_figure(value)} |"


def _figure(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2f}"


def write_sheet(run: dict[str, Any], folder: Path = FOLDER) -> None:
    page = folder / PAGE
    before, mark, rest = page.read_text().partition(BEGIN)
    if not mark or END not in rest:
        raise SystemExit(f"{page} has no place for figures: put a line {BEGIN!r} and one {END!r} into it.")
    page.write_text(f"{before}{BEGIN}\n\n{write_page(run)}\n\n{END}{rest.partition(END)[2]}")
    for plot in PLOTS:
        lines = lines_of(run, plot.name)
        if lines:
            (folder / plot.file).write_text(draw(plot, lines))


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Write docs/why/benchmarks.md and its plots from the figures of a run."
    )
    parser.add_argument("file", type=Path, help="what `python -m benchmarks --out` wrote")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where benchmarks.md is")
    asked = parser.parse_args()
    write_sheet(json.loads(asked.file.read_text()), asked.folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
