"""CPU by function for each operation that has a budget: `make profile`. The operations are those of tests/budgets.

    python -m scripts.profiles decision claim    # these alone

What is profiled is this process: the plane, and the client where there is one; the database is another. Waiting for it (`poll`) is
left out. The profiler's clock is the wall's, because reading the processor's costs more than most functions do: on a busy machine
`send` has the time in which the database took the core. The profiler slows Python down some three times; trust the shares.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import logging
import pstats
import sys
import sysconfig
import time
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from tests.budgets.counts import WARM_UP
from tests.budgets.operations import OPERATIONS, Operation, Stage
from tests.budgets.stage import crowded, server
from tests.fixtures.servers import TestServer

REPETITIONS = 50
MOST = 25
_WAITING = ("<method 'poll' of 'select.", "<method 'select' of 'select.", "<method 'control' of 'select.")


@dataclass(frozen=True)
class Function:
    name: str
    calls: float
    own: float
    cumulative: float
    """Seconds of one repetition, as ``own``."""


async def profile(operation: Operation, stage: Stage) -> tuple[float, list[Function]]:
    """CPU seconds of one repetition without the profiler, and the functions that it spends them in."""
    profiler = cProfile.Profile()
    async with operation(stage, WARM_UP + 2 * REPETITIONS) as perform:
        for _ in range(WARM_UP):
            await perform()
        started = time.process_time()
        for _ in range(REPETITIONS):
            await perform()
        seconds = (time.process_time() - started) / REPETITIONS
        with profiler:
            for _ in range(REPETITIONS):
                await perform()
    return seconds, _functions(profiler)


def _functions(profiler: cProfile.Profile) -> list[Function]:
    known: dict[tuple[str, int, str], tuple[int, int, float, float, object]]
    known = pstats.Stats(profiler).stats  # type: ignore[attr-defined]
    return [
        Function(_named(*place), calls / REPETITIONS, own / REPETITIONS, cumulative / REPETITIONS)
        for place, (_, calls, own, cumulative, _) in known.items()
        if not place[2].startswith(_WAITING)
    ]


def _named(path: str, line: int, function: str) -> str:
    if path == "~":
        return function
    short = path.removeprefix(sysconfig.get_paths()["stdlib"] + "/")
    return f"{short.rpartition('/site-packages/')[2].rpartition('/src/')[2]}:{line} {function}"


def _print(title: str, functions: list[Function], key: Callable[[Function], float]) -> None:
    total = sum(function.own for function in functions)
    print(f"\n  {title:>10} µs{'share':>8}{'own µs':>10}{'all µs':>10}{'calls':>8}")
    for each in sorted(functions, key=key, reverse=True)[:MOST]:
        share = key(each) / total if total else 0.0
        print(
            f"  {key(each) * 1e6:>13.1f}{share:>8.1%}{each.own * 1e6:>10.1f}{each.cumulative * 1e6:>10.1f}"
            f"{each.calls:>8.1f}  {each.name}"
        )


async def profile_all(on: TestServer, names: list[str]) -> None:
    async with crowded(on) as stage:
        for name in names:
            seconds, functions = await profile(OPERATIONS[name], stage)
            print(f"\n{name}: {seconds * 1e3:.2f} ms of CPU each, unprofiled")
            _print("own", functions, lambda each: each.own)
            _print("cumulative", functions, lambda each: each.cumulative)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.profiles", description="CPU by function.")
    parser.add_argument("names", nargs="*", metavar="operation", help=f"of {', '.join(OPERATIONS)}; all unless named")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.names) - set(OPERATIONS)):
        parser.error(f"there is no operation {', '.join(unknown)}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with server() as started:
        asyncio.run(profile_all(started, asked.names or list(OPERATIONS)))
    sys.stdout.flush()


if __name__ == "__main__":
    main()
