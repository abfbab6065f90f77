"""Where the cluster, its socket, its lock and its log are kept.

Normally in the plane's directory. A root caller may own a directory that the server's user cannot reach; no parent is
ever opened up for it. The cluster then lives in a shared place, under a random name, and a pointer is left in the
directory: deleting the directory means starting with an empty database.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import secrets
import stat
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from shlex import quote

from cortex_plane.embedded.account import USE_A_SERVER, Account, explain_os_errors, give_to_owner_of
from cortex_plane.embedded.postmaster import SOCKET_PORT
from cortex_plane.kernel.errors import SetupError

DATA_NAME = "postgres"
POINTER_NAME = "postgres.location"
SOCKETS_NAME = "postgres.socket"
ORIGIN_NAME = "origin"
SHARED_ROOTS = (Path("/var/lib/cortex-plane"), Path("/var/tmp/cortex-plane"))  # noqa: S108
SHORT_ROOTS = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108
# A socket address holds 108 bytes on Linux and 104 elsewhere.
LONGEST_SOCKET = 99


def prepare_directory(directory: Path) -> None:
    """Make the plane's directory if it is missing. One that exists keeps its mode."""
    with explain_os_errors(f"create {directory}", directory.parent):
        directory.parent.mkdir(parents=True, exist_ok=True)
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
            if os.geteuid() == 0:
                # The server's user has to pass through; it can list nothing.
                directory.chmod(0o711)
        if not directory.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, "it is not a directory")


def recorded_home(directory: Path) -> Path:
    """Where the cluster of this directory is, as far as the directory itself knows."""
    try:
        home = _read_path(directory / POINTER_NAME)
    except FileNotFoundError:
        return directory
    if not home.is_dir():
        raise SetupError(
            f"The database of {directory} was kept in {home}, which no longer exists.",
            code="embedded_data_missing",
            hint=f"Restore {home}, or delete {directory / POINTER_NAME} to begin with an empty database.",
        )
    return home


def settle_home(directory: Path, home: Path, account: Account, report: Callable[[str], None]) -> Path:
    """``home`` if the server's user can reach it, else a place in which it can."""
    if home != directory:
        _check_origin(directory, home)
    if account.can_enter(home):
        return home
    # The outermost directory on the way that the server's user cannot enter.
    obstacle = next((parent for parent in reversed(home.parents) if not account.can_enter(parent)), home)
    if home != directory or not account.dropped or has_entries(home / DATA_NAME):
        raise SetupError(
            f"The database in {home / DATA_NAME} cannot be reached by {account}: {obstacle} is closed to it.",
            code="embedded_unreachable",
            hint=f"Let it pass (`chmod o+x {quote(str(obstacle))}`), move {directory} elsewhere, or start as another user.",
        )
    elsewhere = shared_place(account) / secrets.token_hex(8)
    report(f"keeping the data in {elsewhere}, because {account} cannot enter {obstacle}")
    with explain_os_errors(f"create {elsewhere}", elsewhere.parent):
        elsewhere.mkdir(mode=0o755)
        elsewhere.chmod(0o755)
        _check_origin(directory, elsewhere)
        _write_path(directory / POINTER_NAME, elsewhere)
    return elsewhere


def shared_place(account: Account) -> Path:
    """A directory of root's that everybody can read. Only a root caller gets here."""
    for root in SHARED_ROOTS:
        try:
            with suppress(FileExistsError):
                root.mkdir(mode=0o755)
                root.chmod(0o755)
        except OSError:
            continue
        status = root.lstat()
        safe = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if safe and account.can_enter(root):
            return root
    places = " or ".join(str(root) for root in SHARED_ROOTS)
    raise SetupError(
        f"{account} needs a directory that it can reach, and none can be made in {places}.",
        code="embedded_unreachable",
        hint=f"Start as an ordinary user, or {USE_A_SERVER}.",
    )


def socket_directory(directory: Path, home: Path, account: Account) -> Path | None:
    """A directory for the socket that only the server's user and root can enter; None if there is none."""
    owner = hashlib.sha256(f"{account.uid}:{directory}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
    for candidate in (home / SOCKETS_NAME, *(root / f"cortex-{owner}" for root in SHORT_ROOTS)):
        if fits(candidate) and _make_private(candidate, account):
            return candidate
    return None


def socket_file(sockets: Path) -> Path:
    return sockets / f".s.PGSQL.{SOCKET_PORT}"


def fits(sockets: Path) -> bool:
    """Whether servers and drivers take this directory for a socket's."""
    try:
        length = len(str(socket_file(sockets)).encode())
    except UnicodeEncodeError:
        return False
    # Drivers and the server read a list of hosts: a comma would cut the path in two.
    return length <= LONGEST_SOCKET and "," not in str(sockets)


def _make_private(path: Path, account: Account) -> bool:
    try:
        parent = path.parent.stat()
        if parent.st_mode & 0o002 and not parent.st_mode & stat.S_ISVTX:
            return False
        with suppress(FileExistsError):
            path.mkdir(mode=0o700)
            account.own(path)
        # In a directory that others can write to, the name may have been taken by somebody else.
        status = path.lstat()
    except OSError:
        return False
    private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077
    return private and status.st_uid == account.uid and account.can_enter(path)


def _check_origin(directory: Path, home: Path) -> None:
    """A copied directory brings its pointer along: two planes must not share one cluster."""
    file = home / ORIGIN_NAME
    origin = _read_path(file) if file.exists() else directory
    if origin != directory and (origin / POINTER_NAME).exists():
        raise SetupError(
            f"{directory} is a copy of {origin}: both point to the database in {home}.",
            code="embedded_copied",
            hint=f"Delete {directory / POINTER_NAME} to begin with an empty database, or use {origin}.",
        )
    if origin != directory or not file.exists():
        _write_path(file, directory)


def has_entries(path: Path) -> bool:
    """An empty directory counts as nothing."""
    return path.is_dir() and any(path.iterdir())


def _read_path(file: Path) -> Path:
    return Path(os.fsdecode(file.read_bytes().removesuffix(b"\n")))


def _write_path(file: Path, target: Path) -> None:
    """Replace the file as a whole: a reader finds the old text or the new one."""
    staging = file.with_name(f"{file.name}.new")
    staging.unlink(missing_ok=True)
    with staging.open("xb") as output:
        give_to_owner_of(file.parent, output.fileno())
        output.write(os.fsencode(target) + b"\n")
    staging.replace(file)


LOCK_NAME = "postgres.lock"


class DirectoryLock:
    """The file stays behind on purpose: removing it would let two starters lock two different files."""

    def __init__(self, directory: Path) -> None:
        descriptor = os.open(directory / LOCK_NAME, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise _locked_error(directory, holder) from None
        self._descriptor = descriptor
        give_to_owner_of(directory, descriptor)
        # The pid is a courtesy to the next starter; on a full disk the lock holds without it.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        with suppress(OSError):
            os.ftruncate(self._descriptor, 0)
        os.close(self._descriptor)


def _holder(descriptor: int) -> int | None:
    """The pid in the file; a holder that has the lock but has not written yet gets a moment to do so."""
    for _ in range(20):
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        with suppress(ValueError, ProcessLookupError):
            with suppress(PermissionError):  # it is alive, and somebody else's
                os.kill(int(text), 0)
            return int(text)
        time.sleep(0.005)
    return None


def _locked_error(directory: Path, holder: int | None) -> SetupError:
    if holder == os.getpid():
        return SetupError(
            f"The database in {directory} is already started by this process (pid {holder}).",
            code="embedded_locked",
            hint="Use the server that runs, or stop it first.",
        )
    who = f"process {holder}" if holder else "another process"
    stop = f"Stop it (`kill {holder}`)" if holder else f"Stop it (`fuser {quote(str(directory / LOCK_NAME))}` names it)"
    return SetupError(
        f"The database in {directory} is in use by {who}.",
        code="embedded_locked",
        hint=f"{stop}, or start in another directory.",
    )


LOG_NAME = "postgres.log"
MAX_LOG_BYTES = 4 * 1024 * 1024
_QUOTED_LINES = 12
_QUOTED_BYTES = 8192


class ServerLog:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / LOG_NAME
        self._start = 0

    def open(self) -> int:
        """A descriptor to append to; an oversized log becomes ``postgres.log.1`` first."""
        if self.size() > MAX_LOG_BYTES:
            self.path.replace(self.path.with_suffix(".log.1"))
        # Opened here and inherited: the server's user need not be able to write in the directory.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        give_to_owner_of(self._directory, descriptor)
        self._start = self.size()
        return descriptor

    def size(self) -> int:
        try:
            return self.path.stat().st_size
        except FileNotFoundError:
            return 0

    def tail(self) -> str:
        """The last lines that were written since ``open``."""
        try:
            with self.path.open("rb") as file:
                file.seek(max(self._start, self.size() - _QUOTED_BYTES))
                text = file.read().decode("utf-8", "replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.strip().splitlines()[-_QUOTED_LINES:])
