"""Mail: a request, its reminders and its outcome, as one thread in a mailbox, over a few connections that stay open.

A mail cannot be edited, so only what a person must know is sent: that they are asked, asked again, or asked about
something else, and how it ended. Text in it comes from agents or strangers: no line break of it reaches a header, no
markup of it the HTML, and hidden characters are made visible.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import ssl
from binascii import b2a_qp
from collections.abc import Mapping
from dataclasses import dataclass
from email.headerregistry import Address
from email.message import EmailMessage
from email.policy import SMTP, SMTPUTF8
from email.utils import format_datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import aiosmtplib
from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.card_text import card_heading, one_line
from cortex_plane.channels.mail_servers import SmtpServer, StartTls, read_sender
from cortex_plane.kernel.text import marked, span, stamp
from cortex_plane.notify.model.notifications import (
    Alert,
    Card,
    Invitation,
    Occasion,
    Outgoing,
    Sent,
    TryAgain,
    Undeliverable,
)

MAX_CONVERSATIONS = 4
"""At a time, with one server."""
IDLE_SECONDS = 20.0
"""Shorter than the minute after which servers hang up."""
MAILS_PER_CONVERSATION = 200
"""Some servers take only so many in one conversation."""
SERVER_IS_LEAVING = 421

_START_TLS = {StartTls.REQUIRED: True, StartTls.AUTO: None, StartTls.NEVER: False}

LOST_CONNECTION = (aiosmtplib.SMTPServerDisconnected, aiosmtplib.SMTPTimeoutError, OSError, ssl.SSLError)


@dataclass(frozen=True, kw_only=True, slots=True)
class Mail:
    sender: str
    recipient: str
    content: bytes
    utf8: bool
    """Whether an address needs a server that knows SMTPUTF8."""


class _Address(NamedTuple):
    """The arguments of ``Address``, which cannot be a key."""

    display_name: str
    username: str
    domain: str


class _Conversation:
    def __init__(self, client: aiosmtplib.SMTP) -> None:
        self.client = client
        self.mails = 0
        self.begun = False
        """Content was on its way when the conversation failed: it may have arrived."""

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
        self.mails += 1


class SmtpPool:
    """Conversations with one server. One that was idle for too long, or broke, is replaced."""

    def __init__(self, server: SmtpServer, *, timeout: float = 20, idle_seconds: float = IDLE_SECONDS) -> None:
        self._server, self._timeout, self._idle_seconds = server, timeout, idle_seconds
        self._room = asyncio.Semaphore(MAX_CONVERSATIONS)
        self._idle: list[_Conversation] = []
        self._closing: dict[_Conversation, asyncio.TimerHandle] = {}

    async def send(self, mail: Mail) -> None:
        """Raises what ``aiosmtplib`` raises, ``OSError`` or ``TimeoutError``."""
        async with self._room, asyncio.timeout(self._timeout * 3):
            while (line := self._take()) is not None:
                try:
                    await self._use(line, mail)
                    return
                except (*LOST_CONNECTION, aiosmtplib.SMTPResponseException) as error:
                    # A server may end an idle conversation. Before the content was sent nothing is lost.
                    if line.begun or not _has_left(error):
                        raise
            await self._use(await self._open(), mail)

    async def _use(self, line: _Conversation, mail: Mail) -> None:
        try:
            await line.send(mail)
        except (aiosmtplib.SMTPResponseException, aiosmtplib.SMTPNotSupported) as error:
            await self._recover(line, error)
            raise
        except BaseException:
            line.client.close()
            raise
        await self._give_back(line)

    async def _recover(self, line: _Conversation, error: Exception) -> None:
        """A conversation is usable after a refused mail, once the server has been reset."""
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

    async def _open(self) -> _Conversation:
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
        return _Conversation(client)

    def _take(self) -> _Conversation | None:
        while self._idle:
            line = self._idle.pop()
            self._closing.pop(line).cancel()
            if line.client.is_connected:
                return line
            line.client.close()
        return None

    async def _give_back(self, line: _Conversation) -> None:
        if line.mails >= MAILS_PER_CONVERSATION:
            await _leave(line)
            return
        self._idle.append(line)
        self._closing[line] = asyncio.get_running_loop().call_later(self._idle_seconds, self._hang_up, line)

    def _hang_up(self, line: _Conversation) -> None:
        self._closing.pop(line, None)
        with contextlib.suppress(ValueError):
            self._idle.remove(line)
        line.client.close()

    async def close(self) -> None:
        """End idle conversations. Does not wait for mails that are being sent."""
        while (line := self._take()) is not None:
            await _leave(line)


async def _leave(line: _Conversation) -> None:
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
    return isinstance(error, LOST_CONNECTION) and not isinstance(error, TimeoutError)


MAX_SUBJECT = 140
MAX_LINE = 78
_ALTERNATIVES = (("plain", "txt"), ("html", "html"))
_ENHANCED = re.compile(r"[245]\.\d{1,3}\.\d{1,3}(?!\S)")
_NOBODY_THERE = ("5.1.1", "5.1.2", "5.1.3", "5.1.6", "5.1.10")
"""RFC 3463 and 7505; the other 5.1.x are about the sender or the server."""
_COLOURS = {"low": "#2e6b3f", "medium": "#7a5400", "high": "#a3341c", "critical": "#8c1030"}


class EmailChannel:
    """One mail server for the whole plane. Headers and connection of a mail name its org."""

    channel_type = "email"

    def __init__(self, smtp: SmtpServer, sender: str, *, timeout: float = 20, idle_seconds: float = 20) -> None:
        """``sender`` is `cortex@example.com` or `Cortex Plane <cortex@example.com>`."""
        self._pool = SmtpPool(smtp, timeout=timeout, idle_seconds=idle_seconds)
        self._where = f"{smtp.host}:{smtp.port}"
        name, address = read_sender(sender)
        self._from = _Address(name, *_split(address))
        self._address = address
        self._host = address.rpartition("@")[2]

    async def close(self) -> None:
        await self._pool.close()

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        """No mail for votes alone, nor for a request that ended before its first mail."""
        if not shown:
            return card.status is ApprovalStatus.PENDING
        if card.status is not ApprovalStatus.PENDING:
            return bool(shown.get("status") != card.status.value)
        is_changed = (card.version, card.input_hash) != (shown.get("version"), shown.get("input_hash"))
        return is_changed or card.escalation_level > shown.get("level", 0) or card.occasion is Occasion.REMINDED

    async def send(self, outgoing: Outgoing) -> Sent:
        message_id = f"<{outgoing.id}.{outgoing.version}@{self._host}>"
        utf8 = not (outgoing.target.address + self._address).isascii()
        content = self._headers(outgoing, message_id, utf8=utf8) + _body(outgoing)
        mail = Mail(sender=self._address, recipient=outgoing.target.address, content=content, utf8=utf8)
        try:
            await self._pool.send(mail)
        except aiosmtplib.SMTPRecipientRefused as error:
            raise self._refused(error, "the address", address=_is_unknown(error)) from error
        except aiosmtplib.SMTPDataError as error:
            raise self._refused(error, "the mail") from error
        except aiosmtplib.SMTPNotSupported as error:
            raise Undeliverable(f"{self._where}: {_said(error)}") from error
        except (aiosmtplib.SMTPException, *LOST_CONNECTION) as error:
            # Also where the server refuses us: an operator can fix that, and the address is not at fault.
            raise TryAgain(f"The mail server {self._where} does not take mail now: {_said(error)}") from error
        return Sent(message_ref=message_id, shown=_shown(outgoing, message_id))

    def _refused(
        self, error: aiosmtplib.SMTPResponseException, what: str, *, address: bool = False
    ) -> TryAgain | Undeliverable:
        message = f"The mail server {self._where} refused {what}: {_said(error)}"
        # 500 to 504 are about the conversation, not about this person.
        return Undeliverable(message, address=address) if error.code >= 550 else TryAgain(message)

    def _headers(self, outgoing: Outgoing, message_id: str, *, utf8: bool) -> bytes:
        names = {"Subject": one_line(_subject(outgoing), MAX_SUBJECT), "From": self._from, "To": _recipient(outgoing)}
        headers = [_header(name, value, utf8) for name, value in names.items()]
        thread = {"Message-ID": message_id}
        first = outgoing.shown.get("first")
        if outgoing.earlier:
            thread["In-Reply-To"] = outgoing.earlier
            # A mailbox that missed a mail in between still finds the first.
            thread["References"] = " ".join(dict.fromkeys(filter(None, (first, outgoing.earlier))))
        headers += [_plain_header(name, value, utf8) for name, value in thread.items()]
        plain = (
            f"Date: {format_datetime(outgoing.timestamp)}\r\nAuto-Submitted: auto-generated\r\n"
            f"X-Auto-Response-Suppress: All\r\nX-Cortex-Org: {outgoing.org_id}\r\nMIME-Version: 1.0\r\n"
        )
        return b"".join(headers) + plain.encode("ascii")


@lru_cache(maxsize=2048)
def _header(name: str, value: str | _Address, utf8: bool) -> bytes:
    """``email`` parses and folds a header slowly, and the same few come again and again."""
    policy = SMTPUTF8 if utf8 else SMTP
    message = EmailMessage(policy=policy)
    message[name] = value if isinstance(value, str) else Address(*value)
    return b"".join(policy.fold_binary(name, value) for name, value in message.raw_items())


def _plain_header(name: str, value: str, utf8: bool) -> bytes:
    """An id of ours needs no folding where it fits its line."""
    if value.isascii() and value.isprintable() and len(name) + len(value) + 2 <= MAX_LINE:
        return f"{name}: {value}\r\n".encode("ascii")
    return _header.__wrapped__(name, value, utf8)


def _body(outgoing: Outgoing) -> bytes:
    """Text and HTML, after a header that says so."""
    name = type(outgoing.content).__name__.lower()
    words = _words(outgoing)
    # Quoted-printable has no `=_`, so nothing that stands in a part can end it.
    boundary = f"=_{outgoing.id.hex}"
    parts = [(kind, _quoted(render(f"{name}.{end}", **words))) for kind, end in _ALTERNATIVES]
    lines = [f'Content-Type: multipart/alternative; boundary="{boundary}"', ""]
    for kind, text in parts:
        lines += [f"--{boundary}", f'Content-Type: text/{kind}; charset="utf-8"',
                  "Content-Transfer-Encoding: quoted-printable", "", text]  # fmt: skip
    return "\r\n".join([*lines, f"--{boundary}--", ""]).encode("ascii")


def _quoted(text: str) -> str:
    return b2a_qp(b"".join(line + b"\n" for line in text.encode().splitlines())).decode("ascii").replace("\n", "\r\n")


def _content(outgoing: Outgoing) -> Card | Invitation | Alert:
    if not isinstance(outgoing.content, Card | Invitation | Alert):
        raise Undeliverable("A mail carries requests, invitations and alerts, and nothing else.")
    return outgoing.content


def _subject(outgoing: Outgoing) -> str:
    content = _content(outgoing)
    if isinstance(content, Invitation):
        return f"Confirm your address for {content.org}"
    if isinstance(content, Alert):
        if content.job_id is None:
            return f"The connection {content.connection} was disabled"
        return f"Job of {content.agent} failed: its checkpoint is corrupt"
    return f"{card_heading(content, is_first=not outgoing.earlier)}: {content.subject}"


def _split(address: str) -> tuple[str, str]:
    local, _, domain = address.rpartition("@")
    return local, domain


def _recipient(outgoing: Outgoing) -> _Address:
    address = _Address(one_line(outgoing.target.member, 100), *_split(outgoing.target.address))
    try:
        Address(*address)
    except ValueError as error:
        raise Undeliverable(f"{outgoing.target.address!r} is not a mail address.") from error
    return address


def _shown(outgoing: Outgoing, message_id: str) -> dict[str, Any]:
    card, before = _content(outgoing), outgoing.shown
    first = {"first": before.get("first") or outgoing.earlier or message_id}
    if not isinstance(card, Card):
        return first
    state = {"version": card.version, "input_hash": card.input_hash, "level": card.escalation_level}
    return first | {"status": card.status.value} | state


def _said(error: BaseException) -> str:
    """The error on one line; a server's text is not trusted either."""
    match error:
        case TimeoutError():
            return "it does not answer in time"
        case aiosmtplib.SMTPResponseException():
            return one_line(f"{error.code} {error.message}", 300)
    return one_line(str(error) or type(error).__name__, 300)


def _is_unknown(error: aiosmtplib.SMTPRecipientRefused) -> bool:
    """Whether the address does not exist. Servers also refuse recipients because of the sender, or temporarily: their
    enhanced status code tells."""
    code = _ENHANCED.match(error.message.strip())
    return code[0] in _NOBODY_THERE if code else error.code in (550, 551, 553)


def _indented(text: str, by: str = "  ") -> str:
    """Indented, so that lines of others cannot pass for ours."""
    return "\n".join(by + line for line in text.split("\n"))


_templates = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(["html"]),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    auto_reload=False,
)
_templates.filters.update(visible=marked, stamp=stamp, indented=_indented, line=lambda text: one_line(text, 1000))


def render(name: str, **words: Any) -> str:
    return _templates.get_template(name).render(**words)


def _words(outgoing: Outgoing) -> dict[str, Any]:
    content = _content(outgoing)
    if isinstance(content, Invitation):
        return {"invitation": content, "member": outgoing.target.member, "address": outgoing.target.address}
    if isinstance(content, Alert):
        return {
            "alert": content,
            "subject": "A job failed: its checkpoint is corrupt" if content.job_id else _subject(outgoing),
        }
    place, deadline = urlsplit(content.url), content.deadline
    return {
        "card": content,
        "heading": card_heading(content, is_first=not outgoing.earlier),
        "pending": content.status is ApprovalStatus.PENDING,
        "left": None if deadline is None else span((deadline - outgoing.timestamp).total_seconds()),
        "colour": _COLOURS.get(content.risk, "#4a5360"),
        "details": [
            (str(name), value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, sort_keys=True))
            for name, value in sorted((content.details or {}).items())
        ],
        "yes": sum(vote.decision.value == "approved" for vote in content.votes),
        "rest": f"{place.scheme}://{place.netloc}/v1/approvals/decide",
    }
