"""Mail servers, as a setting names them: ``smtp://user:password@host:port?starttls=required``."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass, field
from email.utils import parseaddr
from enum import StrEnum
from urllib.parse import parse_qsl, unquote, urlsplit

from cortex_plane.tenancy.model.identities import normal_address

PORTS = {"smtp": 25, "smtps": 465}


class StartTls(StrEnum):
    REQUIRED = "required"
    """Without encryption nothing is sent."""
    AUTO = "auto"
    """Where the server offers it."""
    NEVER = "never"


@dataclass(frozen=True, kw_only=True, slots=True)
class SmtpServer:
    host: str
    port: int
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: bool = False
    """From the first byte on."""
    starttls: StartTls = StartTls.AUTO

    @property
    def is_local(self) -> bool:
        return _is_loopback(self.host)

    @classmethod
    def parse(cls, url: str) -> SmtpServer:
        """Raises ``ValueError`` with what is wrong; a password is never part of it."""
        parts = urlsplit(url)
        host = parts.hostname
        if parts.scheme not in PORTS:
            raise ValueError("must begin with smtp:// or smtps://")
        if not host:
            raise ValueError("names no host: smtp://host:port")
        if parts.path not in ("", "/") or parts.fragment:
            raise ValueError("has something after the host; a password with / # ? or @ is percent-encoded")
        if (parts.username is None) != (parts.password is None) or parts.username == "":
            raise ValueError("has a user without a password, or a password without a user")
        try:
            port = parts.port or PORTS[parts.scheme]
        except ValueError:
            raise ValueError("has a port that is none") from None
        user = None if parts.username is None else unquote(parts.username)
        password = None if parts.password is None else unquote(parts.password)
        tls = parts.scheme == "smtps"
        starttls = _starttls(parts.query, tls=tls)
        if starttls is None:
            # A password goes over the wire in the clear only where nobody can listen.
            careful = user is not None and not _is_loopback(host)
            starttls = StartTls.REQUIRED if careful and not tls else StartTls.AUTO
        return cls(host=host, port=port, user=user, password=password, tls=tls, starttls=starttls)


def _starttls(query: str, *, tls: bool) -> StartTls | None:
    options = dict(parse_qsl(query, keep_blank_values=True))
    option = options.pop("starttls", None)
    if options:
        raise ValueError(f"has an option that is not known: {min(options)}")
    if option is None:
        return None
    if tls:
        raise ValueError("asks for starttls, but smtps:// is encrypted from the first byte on")
    try:
        return StartTls(option)
    except ValueError:
        raise ValueError("must have starttls=required, auto or never") from None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def read_sender(sender: str) -> tuple[str, str]:
    """Name and address of `cortex@example.com` or `Cortex <cortex@example.com>`. Raises ``ValueError`` with what is wrong."""
    if not sender.isprintable():
        raise ValueError("has a line break or another character that is not seen")
    name, address = parseaddr(sender)
    if "@" not in address:
        raise ValueError("is not a mail address: cortex@example.com, or Cortex <cortex@example.com>")
    return name, normal_address(address)
