"""How this plane reaches people: its channels, the mail sink of `cortex up`, and the address that links begin with.

The sink is a mail server for this machine alone. It delivers nothing: each mail becomes a file in a Maildir, which the
dashboard shows and mail programs can read.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import mailbox
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.email import EmailChannel
from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.mail_servers import SmtpServer
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.channels.whatsapp import WhatsAppChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import Settings
from cortex_plane.notify.verbs.channel_port import ChannelPort, InteractiveChannel
from cortex_plane.tenancy.verbs.served_channels import ServedChannels

if TYPE_CHECKING:
    from aiosmtpd.smtp import SMTP, Envelope, Session

VENDOR_CHANNELS: tuple[Callable[[VendorClient], InteractiveChannel], ...] = (
    TelegramChannel, SlackChannel, DiscordChannel, WhatsAppChannel, GitHubChannel, GitLabChannel,
)  # fmt: skip
"""The channels of vendors, one line each: a class that is made with the client for its requests."""
SINK_SENDER = "Cortex Plane <cortex@localhost>"
MAIL_FOLDER = "mail"
MAIL_BYTES = 10 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class MailSink:
    smtp_url: str
    folder: Path


class _Keeper:
    """Stores each mail before it acknowledges it."""

    def __init__(self, folder: Path) -> None:
        self._box = mailbox.Maildir(str(folder), create=False)

    async def handle_DATA(self, server: SMTP, session: Session, envelope: Envelope) -> str:  # noqa: N802, ARG002
        content = envelope.content
        try:
            await asyncio.to_thread(self._box.add, content if isinstance(content, bytes) else b"")
        except OSError as error:
            return f"451 It cannot be kept now: {error.strerror}"
        return "250 Kept"


@contextlib.asynccontextmanager
async def mail_sink(home: Path) -> AsyncIterator[MailSink]:
    """A sink on a free port of this machine, for as long as the block runs."""
    from aiosmtpd.smtp import SMTP

    folder = home / MAIL_FOLDER
    keeper = _keeper(folder)
    loop = asyncio.get_running_loop()

    conversation = functools.partial(
        SMTP, keeper, hostname="localhost", ident="Cortex", enable_SMTPUTF8=True, data_size_limit=MAIL_BYTES, loop=loop
    )
    server = await loop.create_server(conversation, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    try:
        yield MailSink(f"smtp://127.0.0.1:{port}?starttls=never", folder)
    finally:
        server.close()


def _keeper(folder: Path) -> _Keeper:
    try:
        for directory in (folder, *(folder / part for part in ("tmp", "new", "cur"))):
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Mails hold links that act for people, so only the owner may read them.
            directory.chmod(0o700)
        return _Keeper(folder)
    except OSError as error:
        raise SetupError(
            f"Mails cannot be kept in {folder}: {error.strerror}.",
            code="mail_folder",
            hint="Make the folder writable, or set CORTEX_SMTP_URL to a mail server.",
        ) from error


@dataclass(frozen=True, slots=True)
class Reach:
    public_url: str
    webhooks: WebhookChannel
    email: EmailChannel | None = None
    mail_folder: Path | None = None
    """The Maildir of the sink, which the dashboard shows."""
    interactive: Mapping[str, InteractiveChannel] = field(default_factory=dict)
    """The channels on which people also act, by the type of their connections."""
    clients: Sequence[VendorClient] = ()
    is_public: bool = False
    """Others reach `public_url`: somebody set it."""
    local_url: str | None = None
    """Where this process serves."""
    emulates: bool = False
    """Channels reach the emulators of `cortex up`."""

    @property
    def channels(self) -> Sequence[ChannelPort]:
        mail = [] if self.email is None else [self.email]
        return [self.webhooks, *mail, *self.interactive.values()]

    @property
    def served(self) -> ServedChannels:
        return ServedChannels(
            vendors=self.interactive,
            mailing=self.email is not None,
            allowed=self.webhooks.allowed,
            public_url=self.public_url if self.is_public else None,
            local_url=self.local_url,
            emulates=self.emulates,
        )

    async def close(self) -> None:
        for channel in self.interactive.values():
            # Some have connections of their own besides those of their client.
            close: Callable[[], Awaitable[None]] | None = getattr(channel, "close", None)
            if close is not None:
                await close()
        for client in self.clients:
            await client.close()
        if self.email is not None:
            await self.email.close()


def reach_of(settings: Settings, address: str, sink: MailSink | None = None, emulators: str = "") -> Reach:
    """``address`` is where this process serves; the setting `public_url` names another one for links. ``emulators``: hosts and ports on
    this machine that the channels of vendors may reach besides, and nothing else may."""
    if settings.smtp_url is not None and settings.mail_from is None:
        raise SetupError(
            "CORTEX_SMTP_URL is set, but not who sends the mails.",
            code="invalid_setting",
            hint="Set CORTEX_MAIL_FROM, such as `Cortex Plane <cortex@example.com>`.",
        )
    smtp_url = settings.smtp_url or (sink.smtp_url if sink else None)
    allowed = Allowed.parse(settings.webhook_allow)
    of_vendors = Allowed.parse(f"{settings.webhook_allow},{emulators}") if emulators else allowed
    clients = [VendorClient(of_vendors) for _ in VENDOR_CHANNELS]
    vendors = [make(client) for make, client in zip(VENDOR_CHANNELS, clients, strict=True)]
    return Reach(
        public_url=settings.public_url or address,
        is_public=settings.public_url is not None,
        local_url=address,
        emulates=bool(emulators),
        interactive={vendor.channel_type: vendor for vendor in vendors},
        clients=clients,
        webhooks=WebhookChannel(allowed),
        email=EmailChannel(SmtpServer.parse(smtp_url), settings.mail_from or SINK_SENDER) if smtp_url else None,
        mail_folder=sink.folder if sink else None,
    )
