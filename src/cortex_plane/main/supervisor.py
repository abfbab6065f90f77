"""Keeps one worker process running beside the API of `cortex up`: whoever dies is replaced."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import structlog

log = structlog.get_logger()

GRACE_SECONDS = 5.0
LONG_ENOUGH = 10.0
FIRST_PAUSE, LAST_PAUSE = 0.2, 10.0
MAX_LOG_BYTES = 10 * 1024 * 1024


@contextlib.asynccontextmanager
async def one_worker(
    arguments: Sequence[str], environment: Mapping[str, str], log_file: Path
) -> AsyncIterator[None]:
    """A worker for as long as the block runs."""
    task = asyncio.create_task(_keep_running(arguments, environment, log_file))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _keep_running(arguments: Sequence[str], environment: Mapping[str, str], log_file: Path) -> None:
    pause = FIRST_PAUSE
    while True:
        started = time.monotonic()
        with _log(log_file) as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cortex_plane", "worker", "--parent", str(os.getpid()), *arguments,
                env={**os.environ, **environment}, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end(process)
            raise
        # One that ran for a while deserves a new one at once; one that cannot start must not fill the log.
        pause = FIRST_PAUSE if time.monotonic() - started > LONG_ENOUGH else min(LAST_PAUSE, pause * 2)
        log.warning(
            "the worker ended; a new one starts",
            exit_code=code, said=_last_line(log_file), log=str(log_file), pause=pause,
        )  # fmt: skip
        await asyncio.sleep(pause)


async def _end(process: asyncio.subprocess.Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), GRACE_SECONDS + 6)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _log(path: Path) -> IO[bytes]:
    """For its owner alone: tools say what they like in it. Begun anew when it has grown large."""
    grown = path.exists() and path.stat().st_size > MAX_LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | (os.O_TRUNC if grown else 0)
    return os.fdopen(os.open(path, flags, 0o600), "ab")


def _last_line(path: Path) -> str:
    lines = path.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
