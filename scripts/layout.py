"""Figures of the layout: how many files, how large, how they import each other, and which files an operation passes.

python -m scripts.layout                     # sizes, imports, names
python -m scripts.layout --trace decision    # the files of ours that one operation of tests/budgets runs through
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections import Counter
from pathlib import Path

import structlog
from tests.architecture.names import defined_names, is_participle
from tests.architecture.test_imports import SOURCE, imports, knots, places_imported
from tests.budgets.counts import WARM_UP, PythonCalls
from tests.budgets.operations import OPERATIONS
from tests.budgets.stage import crowded, server
from tests.fixtures.servers import TestServer

SPLINTER, PILE = 30, 600
"""Lines: a file below, and one above, is probably cut in the wrong place."""


def sizes() -> None:
    python = {path: len(path.read_text().splitlines()) for path in SOURCE.rglob("*.py")}
    modules = {path: lines for path, lines in python.items() if path.name != "__init__.py"}
    folders = Counter(path.parent for path in modules)
    largest, most = folders.most_common(1)[0]
    print(f"Python files    {len(python):>7}  ({len(modules)} modules)")
    print(f"SQL files       {len([*SOURCE.rglob('*.sql')]):>7}")
    print(f"lines of Python {sum(python.values()):>7}")
    print(f"splinters       {sum(lines < SPLINTER for lines in modules.values()):>7}  (fewer than {SPLINTER} lines)")
    print(f"piles           {sum(lines > PILE for lines in modules.values()):>7}  (more than {PILE} lines)")
    print(f"largest folder  {most:>7}  {largest.relative_to(SOURCE)}")


def graph() -> None:
    pairs = places_imported()
    files = [count for module, count in pairs.items() if (SOURCE.parent / f"{module.replace('.', '/')}.py").exists()]
    worst = max(pairs, key=lambda module: pairs[module])
    print(
        f"places imported {sum(pairs.values()) / len(pairs):>7.2f}  in the mean, {pairs[worst]} by {worst};"
        f" without packages {sum(files) / len(files):.2f}"
    )
    print(f"cycles          {len(knots(imports())):>7}")


def names() -> None:
    variables, classes = defined_names()
    participles = Counter({name: count for name, count in variables.items() if is_participle(name)})
    share = participles.total() / variables.total()
    common = ", ".join(f"{name} {count}" for name, count in participles.most_common(8))
    print(f"participles     {share:>7.1%}  of variables and parameters: {common}")
    twice = sorted(name for name, count in classes.items() if count > 1)
    print(f"classes twice   {len(twice):>7}  {', '.join(twice)}")


async def trace(on: TestServer, name: str) -> None:
    calls = PythonCalls()
    async with crowded(on) as stage, OPERATIONS[name](stage, WARM_UP + 1) as perform:
        for _ in range(WARM_UP):
            await perform()
        with calls.counted():
            await perform()
    ours = Counter(
        Path(code.co_filename).relative_to(SOURCE).as_posix()
        for code in calls.counts
        if Path(code.co_filename).is_relative_to(SOURCE)
    )
    for path, functions in sorted(ours.items()):
        print(f"{functions:>4}  {path}")
    print(f"{name}: {ours.total()} functions in {len(ours)} files")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.layout", description="Figures of the layout.")
    parser.add_argument("--trace", choices=sorted(OPERATIONS), help="the files that this operation passes")
    asked = parser.parse_args()
    if asked.trace is None:
        sizes()
        graph()
        names()
        return
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with server() as started:
        asyncio.run(trace(started, asked.trace))


if __name__ == "__main__":
    main()
