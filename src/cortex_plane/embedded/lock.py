"""One owner per directory: a lock that the kernel drops together with its holder."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path
from shlex import quote

from cortex_plane.embedded.account import give_to_owner_of
from cortex_plane.kernel.errors import SetupError

FILE_NAME = "postgres.lock"


class DirectoryLock:
    """The file stays behind on purpose: removing it would let two starters lock two different files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._descriptor: int | None = None

    def acquire(self) -> None:
        path = self._directory / FILE_NAME
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _holder(descriptor)
            os.close(descriptor)
            raise _held(self._directory, holder) from None
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        give_to_owner_of(self._directory, descriptor)
        # The pid is a courtesy to the next starter; on a full disk the lock holds without it.
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)

    def release(self) -> None:
        if self._descriptor is not None:
            with contextlib.suppress(OSError):
                os.ftruncate(self._descriptor, 0)
            os.close(self._descriptor)
            self._descriptor = None


def _holder(descriptor: int) -> int | None:
    """The pid in the file; a holder that has the lock but has not written yet gets a moment to do so."""
    for _ in range(20):
        text = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        if text.isdecimal() and _alive(int(text)):
            return int(text)
        time.sleep(0.005)
    return None


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _held(directory: Path, holder: int | None) -> SetupError:
    if holder == os.getpid():
        return SetupError(
            f"The database in {directory} is already started by this process (pid {holder}).",
            code="embedded_locked",
            hint="Use the server that runs, or stop it first.",
        )
    who = f"process {holder}" if holder else "another process"
    stop = (
        f"Stop it (`kill {holder}`)"
        if holder
        else f"Stop it (`fuser {quote(str(directory / FILE_NAME))}` names it)"
    )
    return SetupError(
        f"The database in {directory} is in use by {who}.",
        code="embedded_locked",
        hint=f"{stop}, or start in another directory.",
    )
