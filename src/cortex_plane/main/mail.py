"""Whether this plane sends mail, and through whom."""

from __future__ import annotations

from cortex_plane.channels.email import EmailChannel
from cortex_plane.channels.mail_servers import SmtpServer
from cortex_plane.kernel.errors import SetupError
from cortex_plane.main.settings import Settings

SINK_SENDER = "Cortex Plane <cortex@localhost>"


def email_channel(settings: Settings, sink_url: str | None = None) -> EmailChannel | None:
    """The channel of the server that is set; else of the sink, where there is one; else none."""
    if settings.smtp_url is not None:
        if settings.mail_from is None:
            raise SetupError(
                "CORTEX_SMTP_URL is set, but not who sends the mails.",
                code="invalid_setting",
                hint="Set CORTEX_MAIL_FROM, such as `Cortex Plane <cortex@example.com>`.",
            )
        return EmailChannel(SmtpServer.parse(settings.smtp_url), settings.mail_from)
    if sink_url is not None:
        return EmailChannel(SmtpServer.parse(sink_url), settings.mail_from or SINK_SENDER)
    return None
