"""How this plane reaches people: the channels it can use, and the address that its links begin with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cortex_plane.channels.email import EmailChannel
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.main.mail import email_channel
from cortex_plane.main.settings import Settings
from cortex_plane.notify.verbs.outbox import Channel

if TYPE_CHECKING:
    from cortex_plane.main.mail_sink import Sink


@dataclass(frozen=True, slots=True)
class Reach:
    public_url: str
    webhooks: WebhookChannel
    email: EmailChannel | None = None
    mail_folder: Path | None = None
    """Where mail ends that goes nowhere else, for the browser to show."""

    @property
    def channels(self) -> Sequence[Channel]:
        return [self.webhooks] if self.email is None else [self.webhooks, self.email]

    async def close(self) -> None:
        if self.email is not None:
            await self.email.close()


def reach_of(settings: Settings, address: str, sink: Sink | None = None) -> Reach:
    """``address`` is where this process serves; people elsewhere may need another one, which a setting names."""
    return Reach(
        public_url=settings.public_url or address,
        webhooks=WebhookChannel(Allowed.parse(settings.webhook_allow)),
        email=email_channel(settings, sink.smtp_url if sink else None),
        mail_folder=sink.folder if sink else None,
    )
