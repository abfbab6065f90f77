"""Which user the server runs as, what that user can reach, and operating system errors explained.

PostgreSQL refuses to run as root. A plane that root started therefore runs the server as an unprivileged user that
already exists; no user is ever added.
"""

from __future__ import annotations

import errno
import os
import pwd
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cortex_plane.kernel.errors import SetupError

USE_A_SERVER = "set DATABASE_URL to a PostgreSQL server of your own"
_NO_SPACE_TEXT = "No space left on device"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
# Below one write-ahead log segment PostgreSQL cannot start, whatever else is wrong.
_LEAST_SPACE = 16 * 1024 * 1024


@contextmanager
def explain_os_errors(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` from the block into a refusal that says what could not be done and why."""
    try:
        yield
    except OSError as error:
        raise _explain(error, doing, path) from error


def _explain(error: OSError, doing: str, path: Path) -> SetupError:
    if error.errno in _NO_SPACE:
        return _disk_full(path, f"Cannot {doing}: the disk is full.")
    closed = error.errno in _NOT_WRITABLE
    what = f"Make {path} writable for this user" if closed else f"Check {path}"
    return SetupError(
        f"Cannot {doing}: {error.strerror or error}.",
        code="embedded_not_writable" if closed else "embedded_directory",
        hint=f"{what}, choose another directory, or {USE_A_SERVER}.",
    )


def _disk_full(path: Path, message: str) -> SetupError:
    return SetupError(
        message,
        code="embedded_disk_full",
        hint=f"Free some space on the disk that holds {path} (a new cluster needs about 60 MB), then start again.",
    )


def space_error(path: Path, text: str, message: str) -> SetupError | None:
    """The error where a failure that left ``text`` behind is one of space: a log on the same full disk stays empty."""
    is_full = not text.strip() and (free := os.statvfs(path)).f_bavail * free.f_frsize < _LEAST_SPACE
    return _disk_full(path, f"{message}: the disk is full.") if is_full or _NO_SPACE_TEXT in text else None


# initdb insists on an entry in the user database, so a bare number is the last resort.
FALLBACK_USERS = ("nobody", "daemon", "bin")
FALLBACK_UID = 65534
_PROBE_SECONDS = 20


@dataclass(frozen=True)
class Account:
    uid: int
    gid: int
    dropped: bool
    """True when the caller is root and the server runs as somebody else."""

    def __str__(self) -> str:
        return describe(self.uid)

    def own(self, path: Path) -> None:
        """Give ``path``, which the caller made, to the server's user."""
        if self.dropped:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)

    def probe(self, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a short command as this user; only trying tells what mode bits, ACLs and mounts allow."""
        return subprocess.run(  # noqa: S603
            command,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_SECONDS,
            user=self.uid if self.dropped else None,
            group=self.gid if self.dropped else None,
            extra_groups=[] if self.dropped else None,
        )

    def can_enter(self, directory: Path) -> bool:
        if not self.dropped:
            return os.access(directory, os.X_OK)
        try:
            return self.probe(["/bin/sh", "-c", 'cd -- "$1"', "sh", str(directory)]).returncode == 0
        except (OSError, subprocess.SubprocessError) as error:
            raise SetupError(
                f"PostgreSQL refuses to run as root, and this root may not become {self}: {error}.",
                code="embedded_no_drop",
                hint=f"Start as an ordinary user, allow SETUID and SETGID in this container, or {USE_A_SERVER}.",
            ) from error


def choose_account(directory: Path, data: Path) -> Account:
    """The caller; for root the owner of the data, else of the directory, else a user without rights."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), dropped=False)
    owner = _owner(data)
    entry = _entry(owner)
    if not owner:
        # A directory of an ordinary user keeps working for that user after one start under sudo.
        owner = _owner(directory)
        entry = _entry(owner)
        if not owner or entry is None:
            entry = next(filter(None, map(_entry, FALLBACK_USERS)), None)
            owner = entry.pw_uid if entry else FALLBACK_UID
    return Account(owner, entry.pw_gid if entry else owner, dropped=True)


def describe(uid: int) -> str:
    entry = _entry(uid)
    return f"{entry.pw_name} (uid {uid})" if entry else f"uid {uid}"


def give_to_owner_of(directory: Path, descriptor: int) -> None:
    """Let a file that root writes in somebody's directory belong to that somebody."""
    status = directory.stat()
    if os.geteuid() == 0 and status.st_uid != 0:
        os.fchown(descriptor, status.st_uid, status.st_gid)


def _owner(path: Path) -> int:
    """0 where there is nothing."""
    return path.stat().st_uid if path.exists() else 0


def _entry(user: int | str) -> pwd.struct_passwd | None:
    try:
        return pwd.getpwuid(user) if isinstance(user, int) else pwd.getpwnam(user)
    except KeyError:
        return None
