"""A mail server that keeps what it gets, and fails as it is told to."""

from __future__ import annotations

import asyncio
import contextlib
import email
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.policy import default

from aiosmtpd.smtp import SMTP, Envelope, Session

from cortex_plane.channels.mail_servers import SmtpServer

_URL = re.compile(r"https?://[^\s\"<>]+")


@dataclass(frozen=True)
class Got:
    sender: str
    recipient: str
    options: list[str]
    message: EmailMessage
    raw: bytes

    @property
    def text(self) -> str:
        return self._part("plain")

    @property
    def html(self) -> str:
        return self._part("html")

    @property
    def urls(self) -> list[str]:
        return _URL.findall(self.text)

    def _part(self, kind: str) -> str:
        part = self.message.get_body((kind,))
        assert part is not None
        return str(part.get_content()).replace("\r\n", "\n")


@dataclass
class MailServer:
    """What is in ``on_mail``, ``on_recipient`` and ``on_data`` is answered, one for each, before it takes anything again:
    a line, or `hang`; `drop` takes the mail and hangs up without an answer."""

    got: list[Got] = field(default_factory=list)
    on_mail: list[str] = field(default_factory=list)
    on_recipient: list[str] = field(default_factory=list)
    on_data: list[str] = field(default_factory=list)
    connections: int = 0
    open: list[SMTP] = field(default_factory=list)
    port: int = 0

    @property
    def server(self) -> SmtpServer:
        return SmtpServer.parse(f"smtp://127.0.0.1:{self.port}?starttls=never")

    @property
    def is_quiet(self) -> bool:
        """Nobody is there any more."""
        return all(each.transport is None or each.transport.is_closing() for each in self.open)

    def hang_up(self) -> None:
        """On everybody who is there."""
        for each in self.open:
            if each.transport is not None:
                each.transport.close()

    async def handle_MAIL(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.on_mail:
            return await _answer(self.on_mail.pop(0))
        envelope.mail_from = address
        envelope.mail_options.extend(options)
        return "250 OK"

    async def handle_RCPT(
        self, server: SMTP, session: Session, envelope: Envelope, address: str, options: list[str]
    ) -> str:
        if self.on_recipient:
            return await _answer(self.on_recipient.pop(0))
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:
        answer = self.on_data.pop(0) if self.on_data else "250 OK"
        if not answer.startswith(("2", "drop")):
            return await _answer(answer)
        raw = envelope.original_content
        assert isinstance(raw, bytes)
        message = email.message_from_bytes(raw, policy=default)
        assert isinstance(message, EmailMessage)
        (recipient,) = envelope.rcpt_tos
        self.got.append(Got(str(envelope.mail_from), recipient, envelope.mail_options, message, raw))
        if answer == "drop":
            assert isinstance(server.transport, asyncio.WriteTransport)
            server.transport.abort()
        return answer


async def _answer(line: str) -> str:
    if line == "hang":
        await asyncio.Event().wait()
    return line


@contextlib.asynccontextmanager
async def mail_server(*, utf8: bool = True) -> AsyncIterator[MailServer]:
    made = MailServer()
    loop = asyncio.get_running_loop()

    def conversation() -> SMTP:
        made.connections += 1
        made.open.append(SMTP(made, hostname="localhost", enable_SMTPUTF8=utf8, loop=loop))
        return made.open[-1]

    server = await loop.create_server(conversation, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
        made.hang_up()
