"""Workers without a database: who may connect one and for which apps, and the port through which doors hand over their links."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol
from uuid import UUID

from cortex_plane.agents import store as agents_store
from cortex_plane.agents.model.tools import ToolVersion
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.jobs.model.remote_work import WorkerLink
from cortex_plane.kernel.errors import Conflict, Forbidden
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import verb

CheckKey = Callable[[], Awaitable[None]]
"""Raises where the key of a link does not hold any more."""


class RemoteWorkerHost(Protocol):
    """Runs the attempts of remote workers in this process."""

    def place(self, org_id: UUID) -> AbstractContextManager[None]:
        """A place for one more worker of this org. Raises ``TooMany``."""

    async def serve(self, link: WorkerLink, actor: Actor, check_key: CheckKey) -> None:
        """Until the link ends, on either side. Closes it."""


@verb(Permission.WORKER_RUN)
async def admit_worker(db: Database, actor: Actor, apps: Mapping[str, Sequence[ToolVersion]]) -> None:
    """Refuses apps that the key does not name, and other versions of tools of apps that workers at the database publish. What it publishes
    itself counts in its org alone."""
    if strangers := sorted(apps.keys() - actor.apps):
        raise Forbidden(
            f"This worker key is not for {', '.join(f'`{app}`' for app in strangers[:5])}.",
            code="app_not_in_key",
            hint=f"It is for {', '.join(sorted(actor.apps))}. An admin makes another: `cortex key create NAME --worker --app APP`.",
        )
    if actor.replaces_tools:
        return
    async with db.transaction(NOBODY) as tx:
        digests = await agents_store.platform_tools(tx, sorted(apps))
    for app in sorted({app for app, _ in digests} & apps.keys()):
        for version in apps[app]:
            if digests.get((app, version.name)) != version.digest:
                raise Conflict(
                    f"Workers of the platform publish the app `{app}`, and its tool `{version.name}` is another one here.",
                    code="app_of_others",
                    hint="Give your app another name; or let somebody with a platform key make the worker key.",
                )
