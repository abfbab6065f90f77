"""The life of the embedded server, from the first lock to the last signal."""

from __future__ import annotations

import atexit
import os
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from cortex_plane.embedded import cluster, places, postmaster
from cortex_plane.embedded.account import USE_A_SERVER, Account, choose_account, explain_os_errors, space_error
from cortex_plane.embedded.binaries import Binaries, find_binaries
from cortex_plane.embedded.places import DirectoryLock, ServerLog
from cortex_plane.embedded.postmaster import LOOPBACK, SOCKET_PORT, Server, check_settings, command_line
from cortex_plane.kernel.errors import SetupError

# Counted from the last line in the log: a long recovery writes one every ten seconds and may go on.
START_SECONDS = 60.0
_TICK = 0.005
_PORT_ATTEMPTS = 5


class EmbeddedPostgres:
    """A PostgreSQL of our own in ``directory``. It never outlives the process that started it. Start it from the main
    thread: Linux ties the death signal to the thread that created the child."""

    def __init__(
        self,
        directory: Path,
        *,
        binaries: Path | None = None,
        settings: Mapping[str, str] | None = None,
        tcp: bool = False,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        self._directory, self._binaries = directory, binaries
        self._settings = dict(settings or {})
        self._tcp = tcp
        self._report: Callable[[str], None] = on_progress or (lambda _: None)
        self._lock: DirectoryLock | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._server: Server | None = None
        self._short_sockets: Path | None = None
        self._owner = 0

    def start(self) -> Server:
        """Start the server, or return the one that runs."""
        if self._server is not None and self._child is not None and self._child.poll() is None:
            return self._server
        if threading.current_thread() is not threading.main_thread():
            raise SetupError(
                "The embedded PostgreSQL was started from a thread, and would stop when that thread ends.",
                code="embedded_thread",
                hint="Call start() from the main thread.",
            )
        check_settings(self._settings)
        self.stop()
        self._owner = os.getpid()
        try:
            self._server = self._start()
        except BaseException:
            self.stop()
            raise
        atexit.register(self.stop)
        return self._server

    def stop(self) -> None:
        """Shut down fast, and harder if that takes too long. Stopping twice is no error."""
        # A forked child inherits this object and its atexit hook, but not the server.
        if self._owner != os.getpid():
            return
        atexit.unregister(self.stop)
        if self._child is not None:
            postmaster.stop(self._child)
        if self._short_sockets is not None:
            with suppress(OSError):
                self._short_sockets.rmdir()
        if self._lock is not None:
            self._lock.release()
        self._child = self._server = self._short_sockets = self._lock = None

    def __enter__(self) -> Server:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _start(self) -> Server:
        with explain_os_errors(f"use {self._directory}", self._directory):
            directory = self._directory.resolve()
        places.prepare_directory(directory)
        with explain_os_errors(f"write in {directory}", directory):
            self._lock = DirectoryLock(directory)
        with explain_os_errors(f"use {directory}", directory):
            site = self._settle(directory)
            sockets = None if self._tcp else places.socket_directory(directory, site.home, site.account)
            if sockets is not None and sockets.parent != site.home:
                self._short_sockets = sockets
            postmaster.clear_leftovers(site.data, places.socket_file(sockets) if sockets else None, self._report)
            self._report(f"starting PostgreSQL {site.binaries.version}")
            if sockets is None:
                return self._serve_tcp(site)
            self._launch(site, sockets, SOCKET_PORT)
            return Server(str(sockets), SOCKET_PORT, site.binaries.version, site.data)

    def _settle(self, directory: Path) -> _Site:
        home = places.recorded_home(directory)
        account = choose_account(directory, home / places.DATA_NAME)
        home = places.settle_home(directory, home, account, self._report)
        data = home / places.DATA_NAME
        cluster.check_owner(data, account)
        binaries = find_binaries(self._binaries, account, self._report)
        if places.has_entries(data):
            cluster.check(data, binaries)
        else:
            self._report("creating the database cluster")
            cluster.create(directory, home, account, binaries, sync=self._settings.get("fsync", "on") != "off")
        return _Site(directory, home, data, account, binaries)

    def _serve_tcp(self, site: _Site) -> Server:
        password = cluster.ensure_password(site.directory, site.data, site.account, site.binaries)
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            port = free_port()
            try:
                self._launch(site, None, port)
                break
            except SetupError as error:
                # Between choosing a port and using it somebody else may take it.
                if attempt == _PORT_ATTEMPTS or "Address already in use" not in error.message:
                    raise
        return Server(LOOPBACK, port, site.binaries.version, site.data, password=password)

    def _launch(self, site: _Site, sockets: Path | None, port: int) -> None:
        log = ServerLog(site.directory)
        descriptor = log.open()
        options = command_line(self._settings, sockets=sockets, port=port)
        command = [str(site.binaries.program("postgres")), "-D", str(site.data), *options]
        try:
            self._child = postmaster.spawn(command, site.account, log=descriptor)
        finally:
            os.close(descriptor)
        process, socket_file = self._child, places.socket_file(sockets) if sockets else None
        size, deadline = 0, time.monotonic() + START_SECONDS
        while not postmaster.is_ready(site.data, process.pid, socket_file, port):
            if process.poll() is not None:
                raise _died(process.returncode, log, site)
            if log.size() != size:
                size, deadline = log.size(), time.monotonic() + START_SECONDS
            if time.monotonic() > deadline:
                raise _silent(process.pid, log, site)
            time.sleep(_TICK)


@dataclass(frozen=True)
class _Site:
    """What a start found out: where everything is, and who serves it with what."""

    directory: Path
    home: Path
    data: Path
    account: Account
    binaries: Binaries


def free_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as listener:
        listener.bind((LOOPBACK, 0))
        port: int = listener.getsockname()[1]
        return port


def _died(code: int, log: ServerLog, site: _Site) -> SetupError:
    tail = log.tail()
    error = space_error(site.data, tail, f"PostgreSQL {site.binaries.version} cannot start in {site.data}")
    if error is not None:
        return error
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    return SetupError(
        f"PostgreSQL {site.binaries.version} stopped while it started ({ending}). The end of {log.path}:\n{tail}\n",
        code="embedded_start_failed",
        hint=f"Put right what the log says and start again, or {USE_A_SERVER}.",
    )


def _silent(pid: int, log: ServerLog, site: _Site) -> SetupError:
    return SetupError(
        f"PostgreSQL {site.binaries.version} (pid {pid}) accepted no connection and logged nothing for "
        f"{START_SECONDS:g} seconds. The end of {log.path}:\n{log.tail()}\n",
        code="embedded_start_timeout",
        hint="Look at that log, check that the disk is not overloaded, and start again.",
    )
