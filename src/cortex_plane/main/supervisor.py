"""Keeps processes running: the worker of `cortex up`, and those of `cortex worker --processes` and `cortex api --processes`."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import structlog

from cortex_plane.main.settings import Settings, variable
from cortex_plane.main.sockets import bind, listen

log = structlog.get_logger()

KILL_AFTER_SECONDS = 6.0
"""After its grace period a process has so long to end."""
API_GRACE_SECONDS = 25.0
"""What an API process gives requests in flight and the jobs of remote workers. With the time above it is longer than its own bounds."""
PARENT_LOOK_SECONDS = 0.5
STABLE_SECONDS = 10.0
FIRST_PAUSE, LAST_PAUSE = 0.2, 10.0
MAX_LOG_BYTES = 10 * 1024 * 1024


FEWEST_JOBS = 4
"""Of a process, where nobody says how many processes there are: with fewer slots it keeps none free for other orgs."""


def process_count(settings: Settings) -> int:
    """One per core that this process may use, unless the setting says otherwise."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return settings.processes or max(1, min(cores, settings.concurrency // FEWEST_JOBS))


def run_workers(settings: Settings, processes: int, references: Sequence[str], name: str | None) -> int:
    """So many workers until SIGTERM or SIGINT; one that ends is replaced. Jobs at a time are shared between them.

    The exit code is that of a worker that cannot even start: then all of them stop."""
    each, rest = divmod(settings.concurrency, processes)
    arguments = [f"--app={reference}" for reference in references]

    async def keep(number: int) -> int:
        names = [f"--name={name}-{number}"] if name else []
        environment = {}
        if settings.metrics_port:
            environment[variable("metrics_port")] = str(settings.metrics_port + number - 1)
        worker = [*arguments, *names, f"--concurrency={each + (number <= rest)}", "--processes=1"]
        return await keep_process("worker", worker, environment, settings.grace_seconds, must_start=True)

    return asyncio.run(_run_all([functools.partial(keep, number) for number in range(1, processes + 1)]))


def run_apis(settings: Settings, processes: int) -> int:
    """So many API processes on one port until SIGTERM or SIGINT; one that ends is replaced. The exit code as of `run_workers`."""
    # Whoever shares a port would share it with anybody else who does: so nobody may listen there yet.
    with listen(settings) as listener:
        port = listener.getsockname()[1]
    from cortex_plane.main.grpc_door import free_port  # workers load no web server

    grpc_port = free_port(settings)
    # Bound and not listening, it gets no connection, and keeps the port while no process runs.
    with bind(settings.host, port, shared=True):
        environment = {variable("port"): str(port), variable("grpc_port"): str(grpc_port)}
        keep = functools.partial(keep_process, "api", [], environment, API_GRACE_SECONDS, must_start=True)
        return asyncio.run(_run_all([keep] * processes))


async def _run_all(keepers: Sequence[Callable[[], Coroutine[Any, Any, int]]]) -> int:
    processes = [asyncio.create_task(keep()) for keep in keepers]
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    stopping = asyncio.create_task(stop.wait())
    done, _ = await asyncio.wait([*processes, stopping], return_when=asyncio.FIRST_COMPLETED)
    for task in (*processes, stopping):
        task.cancel()
    await asyncio.gather(*processes, return_exceptions=True)
    return next((task.result() for task in done if task is not stopping), 0)


async def stop_without(parent: int, stop: Callable[[], None]) -> None:
    """Call ``stop`` once the parent of this process is gone."""
    while os.getppid() == parent:  # noqa: ASYNC110 -- nothing tells a process that its parent is gone
        await asyncio.sleep(PARENT_LOOK_SECONDS)
    stop()


async def keep_process(
    command: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    grace_seconds: float,
    *,
    log_file: Path | None = None,
    must_start: bool = False,
) -> int:
    """One process of `cortex COMMAND` at a time, until this is cancelled. With ``must_start``, the exit code of a first one that ends
    at once."""
    pause, is_first = FIRST_PAUSE, True
    while True:
        start = time.monotonic()
        with _open_log(log_file) if log_file else contextlib.nullcontext() as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "cortex_plane", command, "--parent", str(os.getpid()), *arguments,
                env={**os.environ, **environment}, stdin=asyncio.subprocess.DEVNULL, stdout=output, stderr=output,
                start_new_session=True,
            )  # fmt: skip
        try:
            code = await process.wait()
        except asyncio.CancelledError:
            await _end_process(process, grace_seconds)
            raise
        is_stable = time.monotonic() - start > STABLE_SECONDS
        if must_start and is_first and not is_stable and code > 0:
            return code
        is_first = False
        # One that ran for a while is replaced at once; one that cannot start must not fill the log.
        pause = FIRST_PAUSE if is_stable else min(LAST_PAUSE, pause * 2)
        details = {"said": _last_line(log_file), "log": str(log_file)} if log_file else {}
        log.warning(f"the {command} ended; a new one starts", exit_code=code, pause=pause, **details)
        await asyncio.sleep(pause)


async def _end_process(process: asyncio.subprocess.Process, grace_seconds: float) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.terminate()
    try:
        await asyncio.wait_for(process.wait(), grace_seconds + KILL_AFTER_SECONDS)
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def _open_log(path: Path) -> IO[bytes]:
    """For its owner alone, because tools write to it. Emptied when it has become large."""
    is_large = path.exists() and path.stat().st_size > MAX_LOG_BYTES
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | (os.O_TRUNC if is_large else 0)
    return os.fdopen(os.open(path, flags, 0o600), "ab")


def _last_line(path: Path) -> str:
    lines = path.read_bytes()[-4000:].decode(errors="replace").strip().splitlines()
    return lines[-1][:500] if lines else ""
