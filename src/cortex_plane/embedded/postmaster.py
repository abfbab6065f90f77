"""The server processes of a data directory: whether one is ready, and what a killed predecessor left behind.

The caller holds the directory's lock, so whoever started a process found here is dead. That server received SIGINT when
its owner died and is shutting down; backends notice the loss of a killed server by themselves. Both take a moment.

The pid file alone proves nothing: PostgreSQL takes any living or zombie process with that number for a server and then
refuses to start. What counts is a process that works in this very data directory.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from cortex_plane.embedded.child import STOP_STEPS
from cortex_plane.embedded.server import CLUSTER_NAME, LOOPBACK, SUPERUSER
from cortex_plane.kernel.errors import SetupError

PID_FILE = "postmaster.pid"
_PROC = Path("/proc")
_HAS_PROC = (_PROC / "self" / "cwd").exists()
_TICK = 0.005
_BACKEND_TITLE = "postgres: "
# The last step once more, for backends that outlive a server that had to be killed.
_STEPS = (*STOP_STEPS, STOP_STEPS[-1])


def clear_leftovers(data: Path, socket: Path | None, report: Callable[[str], None]) -> None:
    """Afterwards no process works in ``data`` and nothing keeps a new server from starting."""
    running = _processes(data)
    for pid in running:
        if CLUSTER_NAME not in _command(pid) and _is_server_of(pid, data):
            raise SetupError(
                f"A PostgreSQL that was not started from here (pid {pid}) already serves {data}.",
                code="embedded_foreign_server",
                hint=f"Stop it (`kill -INT {pid}`) and start again.",
            )
    if running:
        report(f"waiting for the previous PostgreSQL (pid {min(running)}) to stop")
        _stop(data, running)
    if _HAS_PROC:
        # Only where /proc has just shown that nobody is there; elsewhere PostgreSQL judges by itself.
        (data / PID_FILE).unlink(missing_ok=True)
        if socket is not None:
            socket.unlink(missing_ok=True)
            socket.with_name(f"{socket.name}.lock").unlink(missing_ok=True)


def _stop(data: Path, running: list[int]) -> None:
    for number, seconds in _STEPS:
        servers = [pid for pid in running if not _command(pid).startswith(_BACKEND_TITLE)]
        for pid in servers or running:
            # SIGINT shuts a server down, but only cancels the query of a backend that lost its server.
            _send(pid, number if servers or number is not signal.SIGINT else signal.SIGQUIT)
        deadline = time.monotonic() + seconds
        while running and time.monotonic() < deadline:
            time.sleep(_TICK)
            running = _processes(data)
        if not running:
            return
    raise SetupError(
        f"The previous PostgreSQL of {data} (pid {running[0]}) does not stop.",
        code="embedded_stuck",
        hint=f"Look at `ps -fp {running[0]}`: a process that hangs in the kernel needs its disk back, or a restart.",
    )


def _send(pid: int, number: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def _processes(data: Path) -> list[int]:
    """Every process whose working directory is ``data``; PostgreSQL's processes all stay there."""
    if not _HAS_PROC:
        return _process_in_file(data)
    return [
        int(entry.name)
        for entry in os.scandir(_PROC)
        if entry.name.isdecimal() and _is_server_of(int(entry.name), data)
    ]


def _is_server_of(pid: int, data: Path) -> bool:
    if not _HAS_PROC:
        return bool(_command(pid))
    try:
        return (_PROC / str(pid) / "cwd").readlink() == data and _name(pid) == "postgres"
    except OSError:
        # Gone, a zombie, or a process of somebody else's.
        return False


def _name(pid: int) -> str:
    return (_PROC / str(pid) / "comm").read_text().strip()


def _process_in_file(data: Path) -> list[int]:
    try:
        text = (data / PID_FILE).read_text(errors="replace").split("\n", 1)[0]
    except FileNotFoundError:
        return []
    pid = int(text) if text.isdecimal() else 0
    return [pid] if pid and str(data) in _command(pid) else []


def _command(pid: int) -> str:
    if not _HAS_PROC:
        process = subprocess.run(  # noqa: S603
            ["/bin/ps", "-o", "command=", "-p", str(pid)], capture_output=True, text=True, check=False
        )
        return process.stdout.strip()
    try:
        return (_PROC / str(pid) / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


_PROTOCOL = 3 << 16
_SECONDS = 2.0
_STATUS_LINE = 7
_NOT_YET = b"C57P03\0"


def is_ready(data: Path, pid: int, socket_file: Path | None, port: int) -> bool:
    """The server says so in its pid file, and a client gets an answer.

    The file goes first: it names the process, so that a stranger on the same port is never taken for ours, and
    asking too early would fill the log with refusals.
    """
    return _announced(data, pid) and _answers(socket_file, port)


def _announced(data: Path, pid: int) -> bool:
    try:
        lines = (data / PID_FILE).read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return False
    return len(lines) > _STATUS_LINE and lines[0] == str(pid) and lines[_STATUS_LINE].strip() == "ready"


def _answers(socket_file: Path | None, port: int) -> bool:
    family = socket.AF_UNIX if socket_file else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(str(socket_file) if socket_file else (LOOPBACK, port))
            connection.sendall(_startup_packet())
            answer = connection.recv(1024)
        except OSError:
            return False
    # R asks for credentials or waives them. An error other than "not yet" also comes from a server at work.
    return answer[:1] == b"R" or (answer[:1] == b"E" and _NOT_YET not in answer)


def _startup_packet() -> bytes:
    body = struct.pack("!i", _PROTOCOL)
    for text in ("user", SUPERUSER, "database", "postgres"):
        body += text.encode() + b"\0"
    body += b"\0"
    return struct.pack("!i", len(body) + 4) + body
