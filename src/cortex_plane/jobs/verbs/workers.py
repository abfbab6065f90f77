"""Workers: they register, renew their lease, publish their tools; operators see who is there."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

from cortex_plane.agents.model.tool_confirmations import PublishedTool, ToolServer
from cortex_plane.agents.model.tools import ToolVersion
from cortex_plane.agents.store import tool_servers, tools
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.workers import Worker
from cortex_plane.jobs.store import workers
from cortex_plane.kernel.errors import SetupError
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.verbs import verb

MAX_VERSIONS = 1000


async def register(
    db: Database,
    id: UUID,
    name: str,
    host: str,
    pid: int,
    apps: list[str],
    concurrency: int,
    lease: timedelta,
) -> None:
    await workers.register(db, id, name, host, pid, apps, concurrency, lease)


async def beat(db: Database, id: UUID, lease: timedelta) -> tuple[datetime, list[UUID]] | None:
    return await workers.beat(db, id, lease)


async def stop(db: Database, id: UUID) -> None:
    await workers.stop(db, id)


async def forget(db: Database) -> None:
    await workers.forget(db)


async def publish(db: Database, versions: Sequence[ToolVersion]) -> list[ToolVersion]:
    """Make known what this worker's tools are; a version that is known already stays as it is.

    Returns those that take the place of another one: whatever was approved or confirmed about that is asked again.
    """
    return await tools.publish(db, versions)


async def known_tools(db: Database, app: str, server: str) -> list[ToolVersion]:
    """What an MCP server offered when a worker last heard of it."""
    return await tools.of_server(db, app, server)


async def tell_server(
    db: Database, worker: UUID, app: str, name: str, state: str, reason: str | None, tools: int
) -> None:
    """How one of this worker's MCP servers is."""
    await tool_servers.tell(db, app, name, worker, state, reason, tools)


async def forget_servers(db: Database, worker: UUID) -> None:
    await tool_servers.forget(db, worker)


async def require_key(db: Database, master: bytes) -> None:
    """Refuse a master key that this database does not know: every checkpoint would look forged."""
    mine = _print_of(master)
    _require(await workers.key_fingerprint(db, mine), mine)


async def require_known_key(db: Database, master: bytes) -> None:
    """The same, and leaves no trace: a database that knows no key yet has nothing to say against this one."""
    mine = _print_of(master)
    _require(await workers.known_key(db) or mine, mine)


def _print_of(master: bytes) -> bytes:
    return hmac.new(master, b"cortex-plane fingerprint", hashlib.sha256).digest()


def _require(known: bytes, mine: bytes) -> None:
    if not hmac.compare_digest(known, mine):
        raise SetupError(
            "The master key is not the one that this database was used with.",
            code="wrong_master_key",
            hint="Set CORTEX_MASTER_KEY to the same value for every process of the plane; with `cortex up` it is"
            " kept in the file master.key of the plane's directory.",
        )


@verb(Permission.WORKER_READ)
async def list_all(db: Database, _: Actor) -> list[Worker]:
    return await workers.list_all(db)


@verb(Permission.TOOL_READ)
async def list_versions(db: Database, _: Actor, app: str) -> list[PublishedTool]:
    """Every version of an app's tools, newest first: what changed, and when."""
    return await tools.versions(db, app, MAX_VERSIONS)


@verb(Permission.TOOL_READ)
async def list_servers(db: Database, actor: Actor) -> list[ToolServer]:
    """The MCP servers of the workers that are there. Whose machines those are is for the platform to see."""
    found = await tool_servers.list_all(db)
    return found if actor.may(Permission.WORKER_READ) else [each.for_tenants for each in found]


@verb(Permission.TOOL_READ)
async def list_tools(db: Database, _: Actor) -> list[ToolVersion]:
    return await tools.list_all(db)
