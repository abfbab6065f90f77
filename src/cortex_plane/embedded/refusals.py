"""Operating system errors, told to people."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cortex_plane.kernel.errors import SetupError

USE_A_SERVER = "set DATABASE_URL to a PostgreSQL server of your own"
_NO_SPACE_TEXT = "No space left on device"
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
_NOT_WRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM)
# Below one write-ahead log segment PostgreSQL cannot start, whatever else is wrong.
_LEAST_SPACE = 16 * 1024 * 1024


@contextmanager
def explained(doing: str, path: Path) -> Iterator[None]:
    """Turn an ``OSError`` from the block into a refusal that says what could not be done and why."""
    try:
        yield
    except OSError as error:
        raise _explain(error, doing, path) from error


def _explain(error: OSError, doing: str, path: Path) -> SetupError:
    if error.errno in _NO_SPACE:
        return disk_full(path, f"Cannot {doing}: the disk is full.")
    reason = error.strerror or str(error)
    message = f"Cannot {doing}: {reason}."
    if error.errno in _NOT_WRITABLE:
        return SetupError(
            message,
            code="embedded_not_writable",
            hint=f"Make {path} writable for this user, choose another directory, or {USE_A_SERVER}.",
        )
    return SetupError(
        message,
        code="embedded_directory",
        hint=f"Check {path}, choose another directory, or {USE_A_SERVER}.",
    )


def disk_full(path: Path, message: str) -> SetupError:
    return SetupError(
        message,
        code="embedded_disk_full",
        hint=f"Free some space on the disk that holds {path} (a new cluster needs about 60 MB), then start again.",
    )


def is_disk_full(path: Path, text: str) -> bool:
    """Whether a failure that left ``text`` behind is one of space: a log on the same full disk stays empty."""
    if _NO_SPACE_TEXT in text:
        return True
    if text.strip():
        return False
    free = os.statvfs(path)
    return free.f_bavail * free.f_frsize < _LEAST_SPACE
