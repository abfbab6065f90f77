"""A worker process, from the command line to a clean end, and its metrics."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import Callable, Iterator, Sequence

import structlog

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.pool import PoolPurpose, listen_for_hints
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.meters import metered
from cortex_plane.main.databases import master_key, open_database
from cortex_plane.main.settings import Settings
from cortex_plane.main.supervisor import stop_without
from cortex_plane.notify.verbs.webhooks import AnswerCallbacks
from cortex_plane.worker.scheduler import Scheduler, in_background
from cortex_plane.worker.tools.app import App, load_app
from cortex_plane.worker.worker import JobRunner, WorkerSettings

log = structlog.get_logger()

OnReady = Callable[[JobRunner], None]


def run_worker(
    settings: Settings, url: str, references: Sequence[str], on_ready: OnReady, name: str | None, parent: int | None
) -> None:
    """Until SIGTERM or SIGINT, or until ``parent``, where one is named, is gone."""
    apps = [load_app(reference) for reference in references]
    # Each job needs a connection now and then, the worker's own duties need a few more.
    pool_settings = settings.model_copy(update={"pool_size": max(4, min(settings.pool_size, settings.concurrency + 4))})
    asyncio.run(_run(pool_settings, url, apps, on_ready, name, parent))


async def _run(
    settings: Settings, url: str, apps: Sequence[App], on_ready: OnReady, name: str | None, parent: int | None
) -> None:
    async with open_database(settings, url) as db, contextlib.AsyncExitStack() as stack:
        names = {field.name for field in dataclasses.fields(WorkerSettings)}
        worker_settings = WorkerSettings(**settings.model_dump(include=names))
        callbacks = AnswerCallbacks(db, WebhookChannel(Allowed.parse(settings.webhook_allow)))
        worker = JobRunner(db, apps, master_key(settings), worker_settings, name=name, callbacks=callbacks)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
            stack.callback(loop.remove_signal_handler, number)
        if settings.metrics_port is not None:
            log.info("metrics", address=stack.enter_context(serve_metrics(settings.metrics_port)))
        if settings.notifications:
            await stack.enter_async_context(listen_for_hints(settings.listen_url or url, worker.work))
        # Any number of schedulers may look: each deadline is kept once, and none depends on one process.
        await stack.enter_async_context(in_background(Scheduler(db.own(PoolPurpose.SCHEDULER), name=worker.name).run()))
        if parent is not None:
            await stack.enter_async_context(in_background(stop_without(parent, worker.stop)))
        await worker.run(lambda: on_ready(worker))


METRICS_HOST = "127.0.0.1"
"""The figures name every tenant and nobody is asked for a key: they stay on this machine."""


@contextlib.contextmanager
def serve_metrics(port: int) -> Iterator[str]:
    """Count, and show what was counted, for as long as the block runs. Gives the address."""
    from prometheus_client import start_http_server

    from cortex_plane.http.metrics import Metrics

    metrics = Metrics()
    try:
        server, thread = start_http_server(port, addr=METRICS_HOST, registry=metrics.registry)
    except OSError as error:
        metrics.close()
        raise SetupError(
            f"Cannot listen on {METRICS_HOST}:{port} for metrics: {error.strerror}.",
            code="cannot_listen",
            hint="Set CORTEX_METRICS_PORT to a free port (0 chooses one), each worker of a machine to its own.",
        ) from error
    try:
        with metered(metrics.meters):
            yield f"http://{METRICS_HOST}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
        metrics.close()
