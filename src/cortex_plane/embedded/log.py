"""The server's log file: kept small, and quoted when a start fails."""

from __future__ import annotations

import os
from pathlib import Path

from cortex_plane.embedded.account import give_to_owner_of

FILE_NAME = "postgres.log"
LARGEST = 4 * 1024 * 1024
_QUOTED_LINES = 12
_QUOTED_BYTES = 8192


class ServerLog:
    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.path = directory / FILE_NAME
        self._start = 0

    def open(self) -> int:
        """A descriptor to append to; an oversized log becomes ``postgres.log.1`` first."""
        if self.size() > LARGEST:
            self.path.replace(self.path.with_suffix(".log.1"))
        # Opened here and inherited: the server's user need not be able to write in the directory.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path, flags, 0o600)
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
