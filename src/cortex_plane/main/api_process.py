"""The HTTP server of a plane: the application, and its life from an open socket to a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from cortex_plane import dashboard
from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.db.pool import EVENTS, PoolPurpose, listen_for_hints
from cortex_plane.http.app import Api, create_api, framed
from cortex_plane.http.metrics import Metrics
from cortex_plane.http.read_deadlines import DeadlineProtocol
from cortex_plane.http.streams import EventStream
from cortex_plane.http.worker_socket import worker_socket
from cortex_plane.kernel.meters import metered
from cortex_plane.main.grpc_door import grpc_door
from cortex_plane.main.reach import MailSink, reach_of
from cortex_plane.main.settings import Settings
from cortex_plane.main.sockets import address
from cortex_plane.main.supervisor import stop_without
from cortex_plane.main.worker_door import WorkerDoor
from cortex_plane.notify.verbs.inbound import InboundDoor
from cortex_plane.sessions.verbs.events import EventFeed
from cortex_plane.tenancy.verbs.frame import DEFAULT_LIMITS, RequestLimits, RequestRates
from cortex_plane.tenancy.verbs.trial_connections import end_trial_connections
from cortex_plane.worker.channel_inbox import ChannelInbox
from cortex_plane.worker.channel_listener import ChannelListener
from cortex_plane.worker.notifier import Notifier, ReplyStreamer
from cortex_plane.worker.scheduler import Scheduler, in_background

if TYPE_CHECKING:
    from cortex_plane.main.phone import EmulatedPhone


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


GRACE_SECONDS = 5
OPEN_FILES = 8192
KEEP_ALIVE_SECONDS = 75
"""How long an idle connection stays open: longer than clients and proxies keep theirs (httpx 5 seconds, nginx 60), so
that none of them sends a request into a connection that closes at that moment."""


async def serve(
    settings: Settings,
    db: Database,
    url: str,
    listener: socket.socket,
    on_ready: Callable[[str | None], None],
    sink: MailSink | None = None,
    parent: int | None = None,
    phone: EmulatedPhone | None = None,
    any_grpc_port: bool = False,
) -> None:
    """Serve until SIGINT or SIGTERM, or until ``parent``, where one is named, is gone; requests in flight get a moment to
    finish. ``on_ready`` gets the address of gRPC, if there is one. ``url``: of the database, for hints. ``phone``: of `cortex up`; without it no connection to an emulator is served.
    ``any_grpc_port``: a free one where the port of gRPC is taken that no setting names."""
    _allow_open_streams()
    metrics = Metrics()
    feed = EventFeed(db)
    reach = reach_of(settings, address(listener), sink, phone.addresses if phone else "")
    if phone is None:
        await end_trial_connections(db)
    else:
        await phone.connect(reach.interactive, address(listener))
    limits = RequestLimits(
        in_flight=settings.requests_in_flight,
        in_flight_of_org=settings.org_requests_in_flight,
        streams_of_org=settings.org_streams,
    )
    app = create_app(db, metrics, feed, reach.webhooks, RequestRates(settings.requests_per_second), limits)
    app.state.mailing = reach.email is not None
    app.state.channels = reach.served
    app.state.mail_folder = reach.mail_folder
    app.state.phone = phone
    workers = WorkerDoor(settings, db, url, reach.webhooks)
    config = uvicorn.Config(
        framed(app),
        ws=worker_socket(app, workers.find_host),
        log_config=None,
        access_log=False,
        lifespan="off",
        http=DeadlineProtocol,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=GRACE_SECONDS,
        server_header=False,
        forwarded_allow_ips=settings.trusted_proxies,
    )
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(metrics.close)
        stack.enter_context(metered(metrics.meters))
        if settings.notifications:
            await stack.enter_async_context(listen_for_hints(settings.listen_url or url, feed.heard, EVENTS))
        await stack.enter_async_context(in_background(Scheduler(db.own(PoolPurpose.SCHEDULER)).run()))
        stack.push_async_callback(reach.close)
        notifier = Notifier(db.own(PoolPurpose.NOTIFIER), reach.channels, reach.public_url)
        await stack.enter_async_context(in_background(notifier.run()))
        streamer = ReplyStreamer(db.own(PoolPurpose.NOTIFIER), reach.channels)
        await stack.enter_async_context(in_background(streamer.run()))
        inbox = ChannelInbox(db, reach.interactive, reach.public_url)
        app.state.inbound = InboundDoor(reach.interactive, inbox.wake)
        await stack.enter_async_context(in_background(inbox.run()))
        polls = ChannelListener(db.own(PoolPurpose.NOTIFIER), reach.interactive, inbox.wake)
        await stack.enter_async_context(in_background(polls.run()))
        door = grpc_door(settings, app, db, shared=parent is not None, or_any_port=any_grpc_port)
        grpc = await stack.enter_async_context(door)
        stack.push_async_callback(workers.close)

        def end_streams() -> None:
            feed.close()
            workers.stop()
            if grpc is not None:
                grpc.begin_stop()

        server = _Server(config, lambda: on_ready(grpc.address if grpc else None), end_streams)
        if parent is not None:
            end = functools.partial(server.handle_exit, signal.SIGTERM, None)
            await stack.enter_async_context(in_background(stop_without(parent, end)))
        await server.serve(sockets=[listener])


def _allow_open_streams() -> None:
    """Every stream is an open file, of which many systems give a process 1,024 until it asks for more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < OPEN_FILES:
        most = OPEN_FILES if hard == resource.RLIM_INFINITY else min(OPEN_FILES, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


class _Server(uvicorn.Server):
    """Reports when it accepts requests, and ends open streams before it waits for requests to end."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None], end_streams: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready, self._end_streams = on_ready, end_streams

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._end_streams()
        super().handle_exit(sig, frame)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """A signal ends the server and nothing else: the original raises it again afterwards."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()
