"""Connections to a mail server: a few, kept open while there is something to send."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from dataclasses import dataclass

import aiosmtplib

from cortex_plane.channels.mail_servers import SmtpServer, StartTls

IDLE_SECONDS = 20.0
"""Servers hang up on their own after a minute or more; we are gone before."""
MAILS_EACH = 200
"""Some servers take only so many in one conversation."""
SERVER_IS_LEAVING = 421

_START_TLS = {StartTls.REQUIRED: True, StartTls.AUTO: None, StartTls.NEVER: False}

Lost = (aiosmtplib.SMTPServerDisconnected, aiosmtplib.SMTPTimeoutError, OSError, ssl.SSLError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mail:
    sender: str
    recipient: str
    content: bytes
    utf8: bool
    """Whether an address needs a server that knows SMTPUTF8."""


class _Line:
    """One conversation with the server."""

    def __init__(self, client: aiosmtplib.SMTP) -> None:
        self.client = client
        self.sent = 0
        self.begun = False
        """Content was on its way when something went wrong: nobody knows whether it arrived."""

    async def send(self, mail: Mail) -> None:
        self.begun = False
        options = ["SMTPUTF8", "BODY=8BITMIME"] if mail.utf8 else []
        encoding = "utf-8" if mail.utf8 else "ascii"
        if mail.utf8 and not self.client.supports_extension("smtputf8"):
            raise aiosmtplib.SMTPNotSupported("The mail server does not take addresses with such letters.")
        await self.client.mail(mail.sender, options=options, encoding=encoding)
        await self.client.rcpt(mail.recipient, encoding=encoding)
        self.begun = True
        await self.client.data(mail.content)
        self.sent += 1


class SmtpPool:
    """At most ``size`` conversations at a time; one that was idle for too long, or broke, is replaced."""

    def __init__(
        self, server: SmtpServer, *, size: int = 4, timeout: float = 20, idle_seconds: float = IDLE_SECONDS
    ) -> None:
        self._server = server
        self._timeout = timeout
        self._idle_seconds = idle_seconds
        self._room = asyncio.Semaphore(size)
        self._idle: list[_Line] = []
        self._closing: dict[_Line, asyncio.TimerHandle] = {}

    async def send(self, mail: Mail) -> None:
        """Raises what ``aiosmtplib`` raises, ``OSError`` or ``TimeoutError``."""
        async with self._room, asyncio.timeout(self._timeout * 3):
            while (line := self._take()) is not None:
                try:
                    await self._use(line, mail)
                    return
                except (*Lost, aiosmtplib.SMTPResponseException) as error:
                    # A server may hang up on a conversation that was quiet. Before the content went out that is no loss.
                    if line.begun or not _has_left(error):
                        raise
            await self._use(await self._open(), mail)

    async def _use(self, line: _Line, mail: Mail) -> None:
        try:
            await line.send(mail)
        except (aiosmtplib.SMTPResponseException, aiosmtplib.SMTPNotSupported) as error:
            await self._recover(line, error)
            raise
        except BaseException:
            line.client.close()
            raise
        await self._give_back(line)

    async def _recover(self, line: _Line, error: Exception) -> None:
        """A refused mail leaves the conversation usable, once the server has forgotten the mail."""
        try:
            if _has_left(error):
                raise aiosmtplib.SMTPServerDisconnected("The server is leaving.")
            if isinstance(error, aiosmtplib.SMTPResponseException):
                await line.client.rset()
        except (aiosmtplib.SMTPException, OSError):
            line.client.close()
        except BaseException:
            line.client.close()
            raise
        else:
            await self._give_back(line)

    async def _open(self) -> _Line:
        server = self._server
        client = aiosmtplib.SMTP(
            hostname=server.host,
            port=server.port,
            username=server.user,
            password=server.password,
            use_tls=server.tls,
            start_tls=False if server.tls else _START_TLS[server.starttls],
            timeout=self._timeout,
            # Asking the system for our own name can take seconds, and a server beside us does not care.
            local_hostname="localhost" if server.is_local else None,
        )
        try:
            await client.connect()
            if client.is_ehlo_or_helo_needed:
                await client.ehlo()
        except BaseException:
            client.close()
            raise
        return _Line(client)

    def _take(self) -> _Line | None:
        while self._idle:
            line = self._idle.pop()
            self._closing.pop(line).cancel()
            if line.client.is_connected:
                return line
            line.client.close()
        return None

    async def _give_back(self, line: _Line) -> None:
        if line.sent >= MAILS_EACH:
            await _leave(line)
            return
        self._idle.append(line)
        loop = asyncio.get_running_loop()
        self._closing[line] = loop.call_later(self._idle_seconds, self._hang_up, line)

    def _hang_up(self, line: _Line) -> None:
        self._closing.pop(line, None)
        with contextlib.suppress(ValueError):
            self._idle.remove(line)
        line.client.close()

    async def close(self) -> None:
        """Take leave of the server. Whatever is being sent is not waited for."""
        while (line := self._take()) is not None:
            await _leave(line)


async def _leave(line: _Line) -> None:
    try:
        async with asyncio.timeout(2):
            await line.client.quit()
    except (aiosmtplib.SMTPException, OSError, TimeoutError):
        pass
    finally:
        line.client.close()


def _has_left(error: Exception) -> bool:
    if isinstance(error, aiosmtplib.SMTPResponseException):
        return error.code == SERVER_IS_LEAVING
    return isinstance(error, Lost) and not isinstance(error, TimeoutError)
