"""One run, one PostgreSQL with fsync on, its parts one after the other. Trust the ratios, not the microseconds.

    python -m benchmarks                 # all parts
    python -m benchmarks steps claims    # these
    python -m benchmarks --smoke         # all parts with little work each: that they run, not how fast they are
    python -m benchmarks --out run.json  # and keep the figures, for `python -m benchmarks.sheet run.json`

A part that misses an aim or fails does not stop the others; the exit code tells of both.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.goals import VARIABLE
from benchmarks.parts import MET, MISSED, PARTS
from benchmarks.peers.databases import fresh_database
from cortex_plane.embedded import EmbeddedPostgres

REPOSITORY = Path(__file__).parent.parent
FAILED = 2
LABELS = {MET: "met", MISSED: "MISSED an aim"}


async def run_apart(name: str, admin_url: str, *, smoke: bool, figures: Path) -> int:
    """The exit code of a part in a process and a database of its own."""
    await _write_back(admin_url)
    async with fresh_database(admin_url, name.replace(".", "_")) as url:
        command = [sys.executable, "-m", "benchmarks.parts", name, url, *(["--smoke"] if smoke else [])]
        environment = os.environ | {"PYTHONUNBUFFERED": "1", VARIABLE: str(figures)}
        process = await asyncio.create_subprocess_exec(*command, cwd=REPOSITORY, env=environment)
        try:
            return await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()


async def _write_back(admin_url: str) -> None:
    """What the part before wrote is not written back during the next."""
    connection = await asyncpg.connect(admin_url)
    try:
        await connection.execute("checkpoint", timeout=600)
    finally:
        await connection.close()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure, beside the floor and peers.")
    parser.add_argument("parts", nargs="*", metavar="part", help=f"of {', '.join(PARTS)}; all unless named")
    parser.add_argument("--smoke", action="store_true", help="little work each: that they run, not how fast")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the figures as JSON")
    asked = parser.parse_args()
    if unknown := sorted(set(asked.parts) - set(PARTS)):
        parser.error(f"there is no part {', '.join(unknown)}")
    ends: dict[str, tuple[int, float]] = {}
    with tempfile.TemporaryDirectory(prefix="cortex-bench-") as folder:
        home = Path(folder)
        home.chmod(0o711)
        with EmbeddedPostgres(home) as server:
            print(f"PostgreSQL {server.version}, fsync on", flush=True)
            run = describe(server.version, smoke=asked.smoke)
            parts: list[dict[str, Any]] = []
            for name in asked.parts or PARTS:
                started = time.perf_counter()
                try:
                    figures = home / f"{name}.jsonl"
                    code = asyncio.run(run_apart(name, server.url(), smoke=asked.smoke, figures=figures))
                except Exception:
                    traceback.print_exc()
                    code = FAILED
                ends[name] = code, time.perf_counter() - started
                lines = figures.read_text().splitlines() if figures.exists() else []
                parts.append({"part": name, "code": code, "figures": [json.loads(line) for line in lines]})
                if asked.out:  # after each part: a run that is interrupted keeps what it has
                    asked.out.write_text(json.dumps(run | {"parts": parts}, indent=1) + "\n")
    print(f"\n{'part':36}{'seconds':>10}")
    for name, (code, seconds) in ends.items():
        print(f"{'  ' + name:36}{seconds:>10.0f}  {LABELS.get(code, 'FAILED')}")
    return _exit_code([code for code, _ in ends.values()], smoke=asked.smoke)


def describe(version: int, *, smoke: bool) -> dict[str, Any]:
    """On what these figures were measured."""
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=12"],
        cwd=REPOSITORY,
        check=False,
        capture_output=True,
        text=True,
    )
    return {
        "commit": commit.stdout.strip() or "unknown",
        "date": datetime.now(UTC).date().isoformat(),
        "cores": os.cpu_count(),
        "postgres": version,
        "smoke": smoke,
    }


def _exit_code(codes: list[int], *, smoke: bool) -> int:
    """Of the whole run. That an aim was missed says nothing in a smoke run."""
    if any(code not in LABELS for code in codes):
        return FAILED
    return MISSED if MISSED in codes and not smoke else MET


if __name__ == "__main__":
    sys.exit(main())
