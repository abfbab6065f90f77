"""Counts what each operation costs: `python -m tests.budgets` prints it in the form of budgets.toml.

python -m tests.budgets decision claim    # these alone
python -m tests.budgets --json            # with what the counts are made of, for the test
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import sys
from dataclasses import asdict
from typing import Any

import structlog

from tests.budgets.budget import COUNTS
from tests.budgets.counts import Meter
from tests.budgets.operations import OPERATIONS, known_work
from tests.budgets.stage import crowded, server
from tests.fixtures.servers import TestServer

KNOWN = "known_work"


async def measure(on: TestServer, names: list[str]) -> dict[str, dict[str, Any]]:
    measured: dict[str, dict[str, Any]] = {}
    async with crowded(on) as stage, Meter.attached(stage.world.db, on.admin(on.template)) as meter:
        for name in names:
            counts, parts = await meter.count(known_work if name == KNOWN else OPERATIONS[name], stage)
            shown = {count: parts.largest(count) for count in COUNTS}
            files = {call.partition(":")[0] for call in parts.python_calls if call.startswith("cortex_plane/")}
            measured[name] = {"counts": asdict(counts), "parts": shown, "files": sorted(files)}
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description="Count what each operation costs.")
    parser.add_argument("names", nargs="*", metavar="operation", help=f"of {', '.join(OPERATIONS)}")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if unknown := set(asked.names) - set(OPERATIONS):
        parser.error(f"there is no operation {', '.join(sorted(unknown))}")
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    with server() as started:
        measured = asyncio.run(measure(started, [*(asked.names or OPERATIONS), *([KNOWN] if asked.json else [])]))
    if asked.json:
        json.dump(measured, sys.stdout)
        return
    for name, known in measured.items():
        lines = [f"{count} = {figure}" for count, figure in known["counts"].items() if figure is not None]
        sys.stdout.write("\n".join([f"[{name}]", *lines, "", ""]))


if __name__ == "__main__":
    main()
