"""Where the mails of `cortex up` end: a mail server for this machine alone, which keeps them for the browser to show.

It delivers nothing to anybody. What it takes in becomes a file of a Maildir, which mail programs can read too.
"""

from __future__ import annotations

import asyncio
import contextlib
import mailbox
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from aiosmtpd.smtp import SMTP, Envelope, Session

from cortex_plane.kernel.errors import SetupError

FOLDER = "mail"
MAX_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Sink:
    smtp_url: str
    folder: Path


class _Keeper:
    """Writes each mail down before it says that it has it."""

    def __init__(self, folder: Path) -> None:
        self._box = mailbox.Maildir(str(folder), create=False)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802, ARG002
        content = envelope.content
        try:
            await asyncio.to_thread(self._keep, content if isinstance(content, bytes) else b"")
        except OSError as error:
            return f"451 It cannot be kept now: {error.strerror}"
        return "250 Kept"

    def _keep(self, content: bytes) -> None:
        """Whole or not at all: a Maildir writes elsewhere first."""
        self._box.add(content)


@contextlib.asynccontextmanager
async def mail_sink(home: Path) -> AsyncIterator[Sink]:
    """A sink on a free port of this machine, for as long as the block runs."""
    folder = home / FOLDER
    keeper = _keeper(folder)
    loop = asyncio.get_running_loop()

    def conversation() -> SMTP:
        return SMTP(
            keeper,
            hostname="localhost",
            ident="Cortex",
            enable_SMTPUTF8=True,
            data_size_limit=MAX_BYTES,
            loop=loop,
        )

    server = await loop.create_server(conversation, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield Sink(f"smtp://127.0.0.1:{port}?starttls=never", folder)
    finally:
        server.close()


def _keeper(folder: Path) -> _Keeper:
    try:
        for each in (folder, *(folder / part for part in ("tmp", "new", "cur"))):
            each.mkdir(mode=0o700, parents=True, exist_ok=True)
            # For the owner's eyes only, whoever made it: the mails hold links that act for people.
            each.chmod(0o700)
        return _Keeper(folder)
    except OSError as error:
        raise SetupError(
            f"Mails cannot be kept in {folder}: {error.strerror}.",
            code="mail_folder",
            hint="Make the folder writable, or set CORTEX_SMTP_URL to a mail server.",
        ) from error
