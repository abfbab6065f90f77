"""The application that a server runs: the API and the pages."""

from __future__ import annotations

from cortex_plane import dashboard
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.http.app import Api, create_api
from cortex_plane.http.in_flight import DEFAULT_LIMITS, RequestLimits
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.streams import EventStream
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.verbs.request_rates import RequestRates


def create_app(
    db: Database,
    metrics: Metrics,
    feed: EventFeed | None = None,
    webhook_channel: WebhookChannel | None = None,
    rates: RequestRates | None = None,
    limits: RequestLimits = DEFAULT_LIMITS,
) -> Api:
    """Without ``rates`` requests are not limited."""
    app = create_api(db, metrics, feed or EventFeed(db), webhook_channel or WebhookChannel(), rates, limits)
    dashboard.mount(app, app.add_page, EventStream)
    return app
