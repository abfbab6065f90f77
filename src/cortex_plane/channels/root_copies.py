"""Where copies of signed roots go: a file that is only appended to, and an address that each new root is posted to."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import structlog

from cortex_plane.proof.rules.roots import RootCopy, RootMark, read_copy

if TYPE_CHECKING:
    from cortex_plane.channels.pinned_http import PinnedClient

log = structlog.get_logger()


class RootsFile:
    """One line per root. Several processes may append: each takes the lock, and first reads what others wrote."""

    name = "file"
    begins_with_the_newest = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._inode = self._read_to = 0
        self._marks: dict[UUID, RootMark] = {}

    async def last(self, org_id: UUID) -> RootMark | None:
        await asyncio.to_thread(self._append, ())
        return self._marks.get(org_id)

    async def add(self, copies: Sequence[RootCopy]) -> None:
        await asyncio.to_thread(self._append, copies)

    def _append(self, copies: Sequence[RootCopy]) -> None:
        with self._locked() as file:
            self._catch_up(file)
            marks = self._marks
            new = [c for c in copies if c.org_id not in marks or c.seq > marks[c.org_id].seq]
            if not new:
                return
            lines = b"".join(copy.as_line() for copy in new)
            while lines:
                lines = lines[os.write(file, lines) :]
            os.fsync(file)
            self._catch_up(file)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield file
        finally:
            os.close(file)

    def _catch_up(self, file: int) -> None:
        """Read what was appended since the last call; everything if the file was replaced."""
        now = os.fstat(file)
        if now.st_ino != self._inode or now.st_size < self._read_to:
            self._inode, self._read_to, self._marks = now.st_ino, 0, {}
        if now.st_size == self._read_to:
            return
        with open(os.dup(file), "rb") as reader:  # noqa: PTH123 -- it is open
            reader.seek(self._read_to)
            for line in reader:
                if not line.endswith(b"\n"):
                    # Its writer died and lost the lock: an incomplete line does not count.
                    os.ftruncate(file, self._read_to)
                    return
                if (entry := read_copy(line)) is not None:
                    self._marks[entry[0]] = entry[1]
                self._read_to += len(line)


class RootsAddress:
    """Posts each root as JSON, in the background: making a root does not wait for the receiver. A root that failed is sent
    again with the next one of its org."""

    name = "webhook"
    begins_with_the_newest = True

    def __init__(self, url: str, client: PinnedClient) -> None:
        self._url, self._client = url, client
        self._marks: dict[UUID, RootMark] = {}
        self._pending: dict[UUID, Sequence[RootCopy]] = {}
        self._task: asyncio.Task[None] | None = None

    async def last(self, org_id: UUID) -> RootMark | None:
        return self._marks.get(org_id)

    async def add(self, copies: Sequence[RootCopy]) -> None:
        first = copies[0]
        self._marks.setdefault(first.org_id, RootMark(first.seq - 1, None))
        self._pending[first.org_id] = copies
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._send())

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _send(self) -> None:
        while self._pending:
            org_id, copies = self._pending.popitem()
            for copy in copies:
                if copy.seq <= self._marks[org_id].seq:
                    continue
                try:
                    answer = await self._client.post(self._url, {"Content-Type": "application/json"}, copy.as_line())
                    reason = None if 200 <= answer.status < 300 else f"it answered {answer.status}"
                except Exception as error:
                    reason = str(error) or repr(error)
                if reason is not None:
                    log.warning("root not copied", place=self.name, org_id=str(org_id), root=copy.seq, error=reason)
                    break
                self._marks[org_id] = RootMark(copy.seq, None)
