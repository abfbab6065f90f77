"""The embedded server: as its clients see it, its command line, its processes, and what a killed predecessor left behind.

Leftovers: the caller holds the directory's lock, so whoever started a process found here is dead. That server received SIGINT
when its owner died and is shutting down; backends notice the loss of a killed server by themselves. Both take a moment.

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
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from cortex_plane.embedded.account import Account
from cortex_plane.kernel.child_process import bound_to_parent
from cortex_plane.kernel.errors import SetupError

SUPERUSER = "postgres"
LOOPBACK = "127.0.0.1"
# Every server has a socket directory of its own, so the port is only a part of the socket's name.
SOCKET_PORT = 5432


@dataclass(frozen=True)
class Server:
    """``host`` is the socket directory, or 127.0.0.1. ``password`` is set for TCP only."""

    host: str
    port: int
    version: int
    data_directory: Path
    superuser: str = SUPERUSER
    password: str | None = field(default=None, repr=False)

    def url(self, database: str = "postgres", user: str | None = None) -> str:
        """A URL for asyncpg and libpq. Over TCP it carries ``password`` for every user: give a new login role that password
        to let it in. On the socket no password is asked."""
        login = quote(self.superuser if user is None else user, safe="")
        name = quote(database, safe="")
        # sslmode is explicit, because PGSSLMODE in the caller's environment would ask for what is not there.
        if self.password is None:
            host = quote(self.host, safe="")
            return f"postgresql://{login}@/{name}?host={host}&port={self.port}&sslmode=disable"
        secret = quote(self.password, safe="")
        return f"postgresql://{login}:{secret}@{self.host}:{self.port}/{name}?sslmode=disable"


# In the command line of every server that we start: tells ours from a stranger's.
CLUSTER_NAME = "cortex-plane"

_DEFAULTS = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "password_encryption": "scram-sha-256",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
}
# Nobody replicates from an embedded server; either setting without the other may not start.
_WITHOUT_REPLICATION = {"wal_level": "minimal", "max_wal_senders": "0"}
_DECIDED_HERE = {
    "cluster_name": CLUSTER_NAME,
    "log_destination": "stderr",
    "logging_collector": "off",
    "unix_socket_permissions": "0700",
    "ssl": "off",
}
_ADDRESS = ("listen_addresses", "port", "unix_socket_directories")
RESERVED = frozenset(_DECIDED_HERE) | frozenset(_ADDRESS) | {"data_directory", "hba_file", "external_pid_file"}


def check_settings(settings: Mapping[str, str]) -> None:
    for name in settings:
        if name.lower() in RESERVED:
            raise SetupError(
                f"The setting {name} cannot be changed: the embedded server decides it.",
                code="embedded_setting",
                hint=f"Remove {name} from the settings of the embedded PostgreSQL.",
            )


def command_line(settings: Mapping[str, str], *, sockets: Path | None, port: int) -> list[str]:
    """``-c name=value`` for everything: defaults, then the caller's, then what may not be changed."""
    options = dict(_DEFAULTS)
    if not any(name in settings for name in _WITHOUT_REPLICATION):
        options |= _WITHOUT_REPLICATION
    options |= {**settings, **_DECIDED_HERE, "port": str(port)}
    if sockets is None:
        options |= {"listen_addresses": LOOPBACK, "unix_socket_directories": ""}
    else:
        # PostgreSQL reads a list: in quotes, a path with spaces stays one entry.
        path = str(sockets).replace('"', '""')
        options |= {"listen_addresses": "", "unix_socket_directories": f'"{path}"'}
    return [word for name, value in options.items() for word in ("-c", f"{name}={value}")]


# Nothing else is passed on: PG* variables would change the server, and secrets do not belong in it.
_PASSED_ON = ("PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
# A fast shutdown writes a checkpoint; SIGQUIT drops it and costs a recovery at the next start.
STOP_STEPS = ((signal.SIGINT, 30.0), (signal.SIGQUIT, 5.0), (signal.SIGKILL, 5.0))


def spawn(command: Sequence[str], account: Account, *, log: int) -> subprocess.Popen[bytes]:
    """Start ``command`` in the foreground of its own session, so that a Ctrl-C is ours to pass on."""
    return subprocess.Popen(  # noqa: S603
        _bound(command, account), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **_process_options()
    )


def run(command: Sequence[str], account: Account, *, text: str = "") -> tuple[int, str]:
    """Run ``command`` to its end with ``text`` as its input: the exit code and its output."""
    process = subprocess.run(  # noqa: S603
        _bound(command, account),
        input=text,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        **_process_options(),
    )
    return process.returncode, process.stdout


def stop(child: subprocess.Popen[bytes]) -> None:
    for number, seconds in STOP_STEPS:
        if child.poll() is None:
            child.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                child.wait(seconds)


def _bound(command: Sequence[str], account: Account) -> list[str]:
    return bound_to_parent(command, signal.SIGINT, (account.uid, account.gid) if account.dropped else None)


def _process_options() -> dict[str, Any]:
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    # English messages: some of them are recognised.
    return {"cwd": "/", "env": environment | {"LC_ALL": "C", "TZ": "UTC"}, "start_new_session": True, "umask": 0o077}


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
            with suppress(ProcessLookupError):
                # SIGINT shuts a server down, but only cancels the query of a backend that lost its server.
                os.kill(pid, number if servers or number is not signal.SIGINT else signal.SIGQUIT)
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


def _processes(data: Path) -> list[int]:
    """Every process whose working directory is ``data``; PostgreSQL's processes all stay there."""
    if not _HAS_PROC:
        text = _pid_file(data)[0]
        return [int(text)] if text.isdecimal() and str(data) in _command(int(text)) else []
    pids = [int(entry.name) for entry in os.scandir(_PROC) if entry.name.isdecimal()]
    return [pid for pid in pids if _is_server_of(pid, data)]


def _is_server_of(pid: int, data: Path) -> bool:
    if not _HAS_PROC:
        return bool(_command(pid))
    try:
        process = _PROC / str(pid)
        return (process / "cwd").readlink() == data and (process / "comm").read_text().strip() == "postgres"
    except OSError:
        # Gone, a zombie, or a process of somebody else's.
        return False


def _pid_file(data: Path) -> list[str]:
    try:
        return (data / PID_FILE).read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return [""]


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


_STARTUP = struct.pack("!i", 3 << 16) + f"user\0{SUPERUSER}\0database\0postgres\0\0".encode()
"""The first message of the protocol, version 3."""
_SECONDS = 2.0
_STATUS_LINE = 7
_NOT_YET = b"C57P03\0"


def is_ready(data: Path, pid: int, socket_file: Path | None, port: int) -> bool:
    """The server says so in its pid file, and a client gets an answer. The file goes first: it names the process, so that a
    stranger on the same port is never taken for ours, and asking too early would fill the log with refusals."""
    lines = _pid_file(data)
    if len(lines) <= _STATUS_LINE or lines[0] != str(pid) or lines[_STATUS_LINE].strip() != "ready":
        return False
    with socket.socket(socket.AF_UNIX if socket_file else socket.AF_INET, socket.SOCK_STREAM) as connection:
        connection.settimeout(_SECONDS)
        try:
            connection.connect(str(socket_file) if socket_file else (LOOPBACK, port))
            connection.sendall(struct.pack("!i", len(_STARTUP) + 4) + _STARTUP)
            answer = connection.recv(1024)
        except OSError:
            return False
    # R asks for credentials or waives them. An error other than "not yet" also comes from a server at work.
    return answer[:1] == b"R" or (answer[:1] == b"E" and _NOT_YET not in answer)
