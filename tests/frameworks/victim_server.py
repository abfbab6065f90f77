"""A process that imported every framework once, and forks one agent after the other: an import takes far longer than a turn.

    python -m tests.frameworks.victim_server

It reads one task per line and answers with how the agent's process ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import json
import logging
import os
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import structlog

from cortex_plane.db import crash_points
from tests.frameworks.victims import VICTIMS, Errand

REPOSITORY = Path(__file__).parents[2]
NOWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True, kw_only=True)
class Ended:
    status: int
    text: str | None = None
    """Its answer; None where something waits."""
    log: str = ""


def _live(task: dict[str, Any], write: int) -> NoReturn:
    """The whole life of a child."""
    status = 1
    try:
        crash_points.arm(task.pop("at"), task.pop("log"))
        victim = VICTIMS[task.pop("victim")]
        text = victim.run(Errand(**{**task, "folder": Path(task["folder"])}))
        os.write(write, json.dumps(text).encode())
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _run(task: dict[str, Any]) -> Ended:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        with open(Path(task["folder"]) / "output.txt", "w") as output:  # noqa: PTH123 -- its number is what counts
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
        _live(task, write)
    os.close(write)
    with os.fdopen(read) as file:
        text = file.read()
    _, status = os.waitpid(child, 0)
    log = (Path(task["folder"]) / "output.txt").read_text()[-4000:]
    return Ended(status=os.waitstatus_to_exitcode(status), text=json.loads(text) if text else None, log=log)


def _warm_up() -> None:
    """What is made or imported with a first call is made here, against a plane that is not there."""
    for name in (name for name in VICTIMS if not name.startswith(("hook", "gateway"))):
        with tempfile.TemporaryDirectory() as folder, contextlib.suppress(Exception):
            errand = Errand(
                url=NOWHERE, secret="none", folder=Path(folder), orders=["A-1"], on_uncertain="ask_human", patience=0
            )
            VICTIMS[name].run(errand)


def main() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    logging.disable(logging.WARNING)
    # Nobody speaks TLS here: loading all certificates takes longer than everything else that an agent does.
    os.environ["SSL_CERT_DIR"] = str(Path(__file__).parent)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    _warm_up()
    gc.collect()
    gc.freeze()
    for line in sys.stdin:
        answers.write(json.dumps(dataclasses.asdict(_run(json.loads(line)))) + "\n")
        answers.flush()


class VictimServer:
    """The process above, as a test speaks to it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    async def run(self, victim: str, errand: dict[str, Any], at: str | None = None, log: Path | None = None) -> Ended:
        task = {"victim": victim, **errand, "at": at, "log": None if log is None else str(log)}
        return await asyncio.to_thread(self._ask, task)

    def _ask(self, task: dict[str, Any]) -> Ended:
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(json.dumps(task) + "\n")
        stdin.flush()
        return Ended(**json.loads(stdout.readline()))


@contextlib.contextmanager
def victim_server() -> Iterator[VictimServer]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.frameworks.victim_server"],
        cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield VictimServer(process)
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()


if __name__ == "__main__":
    main()
