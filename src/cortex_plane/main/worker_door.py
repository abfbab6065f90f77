"""The door of remote workers in an API process: built when the first one connects, so that a process without any pays nothing."""

from __future__ import annotations

import dataclasses
import functools
from importlib.util import find_spec
from typing import TYPE_CHECKING

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.db.database import Database
from cortex_plane.db.pool import listen_for_hints
from cortex_plane.kernel.errors import Unavailable
from cortex_plane.main.databases import master_key
from cortex_plane.main.settings import Settings
from cortex_plane.notify.verbs.webhooks import AnswerCallbacks

if TYPE_CHECKING:
    from cortex_plane.worker.remote.host import RemoteWorkers

NEEDED = ("pydantic_ai", "anyio")
"""What the extra `worker` brings and the extra `server` does not, of what an attempt of a remote worker needs."""


class WorkerDoor:
    """Where the links of remote workers arrive."""

    def __init__(self, settings: Settings, db: Database, url: str, webhooks: WebhookChannel) -> None:
        """``url``: of the database, for hints."""
        self._settings, self._db, self._url, self._webhooks = settings, db, url, webhooks
        self._host: RemoteWorkers | None = None

    def find_host(self) -> RemoteWorkers:
        if self._host is None:
            if any(find_spec(package) is None for package in NEEDED):
                raise Unavailable(
                    "This process runs no attempts of remote workers: the extra `worker` is not installed here.",
                    code="worker_extra_missing",
                    hint="Where `cortex api` runs: pip install 'cortex-plane[server,worker]'.",
                )
            self._host = self._make_host()
        return self._host

    def _make_host(self) -> RemoteWorkers:
        from cortex_plane.worker.remote.host import HostParts, RemoteWorkers
        from cortex_plane.worker.worker import WorkerSettings

        settings = self._settings
        names = {field.name for field in dataclasses.fields(WorkerSettings)}
        parts = HostParts(
            db=self._db, master_key=master_key(settings), settings=WorkerSettings(**settings.model_dump(include=names)),
            callbacks=AnswerCallbacks(self._db, self._webhooks),
            listen=functools.partial(listen_for_hints, settings.listen_url or self._url) if settings.notifications else None,
        )  # fmt: skip
        return RemoteWorkers(parts)

    def stop(self) -> None:
        """Take nothing new: the process is about to end."""
        if self._host is not None:
            self._host.stop()

    async def close(self) -> None:
        if self._host is not None:
            await self._host.close()
