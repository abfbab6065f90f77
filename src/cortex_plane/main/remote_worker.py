"""`cortex worker --url`: a worker process without a database, from the command line to a clean end.

It imports the client, the tools and what the apps need, and nothing of a database.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import stat
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

from cortex_plane.client.transport import Plane
from cortex_plane.client.worker_link import open_link
from cortex_plane.jobs.model.remote_work import WorkerLink
from cortex_plane.kernel.errors import SetupError, extra
from cortex_plane.main.settings import configure_logs
from cortex_plane.worker.remote.runner import RemoteWorker
from cortex_plane.worker.tools.app import load_app

DEFAULT_CONCURRENCY = 16


def neither_way() -> SetupError:
    return SetupError(
        "There is no database and no plane to run jobs of.",
        code="no_database",
        hint="Either set DATABASE_URL to the plane's plain login, for a worker beside the database (or run it in the folder of "
        "`cortex up`). Or connect to a plane without one: `cortex worker --url https://plane.example.org --app module:app`, with a "
        "worker key in CORTEX_KEY (`cortex key create NAME --worker --app APP`).",
    )


def read_key(option: str | None, path: Path | None) -> str:
    """The worker key: of the option, of a file, or of CORTEX_KEY, which it takes out of the environment: tools must not see it. Other users
    of the machine see what stands on a command line."""
    from_environment = os.environ.pop("CORTEX_KEY", "")
    if path is not None:
        try:
            text, mode = path.read_text(), path.stat().st_mode
        except OSError as error:
            raise SetupError(
                f"The key cannot be read from {path}: {error.strerror}.",
                code="unreadable_file",
                hint="Correct --key-file.",
            ) from None
        if mode & (stat.S_IRWXG | stat.S_IRWXO) & ~stat.S_IXGRP & ~stat.S_IXOTH:
            logging.getLogger(__name__).warning("others may read %s: make it yours alone with `chmod 600`", path)
        return text.strip()
    key = option or from_environment
    if not key.strip():
        raise SetupError(
            "A worker without a database needs a worker key.",
            code="key_missing",
            hint="An admin makes one: `cortex key create NAME --worker --app APP`. Set CORTEX_KEY to it, or use --key-file.",
        )
    return key.strip()


def run_remote_worker(
    url: str,
    key: str,
    references: Sequence[str],
    on_ready: Callable[[str], None],
    *,
    concurrency: int | None,
    name: str | None,
) -> None:
    """Until SIGTERM or SIGINT. ``on_ready`` gets a line each time that it is connected."""
    if not references:
        raise SetupError(
            "A worker without a database runs the tools of apps, and none is named.",
            code="no_app",
            hint="Name one: `--app package.module:app`.",
        )
    plane = Plane(url, {"Authorization": f"Bearer {key}"})
    apps = [load_app(reference) for reference in references]
    if any(app.mcp_servers for app in apps):
        with extra("mcp"):
            configure_logs("info", as_json=False)

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[WorkerLink]:
        async with open_link(plane) as link:
            yield link

    async def run() -> None:
        worker = RemoteWorker(apps, connect, concurrency=concurrency or DEFAULT_CONCURRENCY, name=name)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        line = f"worker {worker.name} runs {', '.join(worker.apps)} for {url}"
        await worker.run(lambda _: on_ready(line))

    asyncio.run(run())
