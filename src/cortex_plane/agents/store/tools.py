"""Published tool versions in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from cortex_plane.agents.model.tool_confirmations import PublishedTool
from cortex_plane.agents.model.tools import Risk, ToolVersion
from cortex_plane.db.database import NOBODY, Database, Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import one
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def publish(db: Database, versions: Sequence[ToolVersion]) -> list[ToolVersion]:
    """Those that take the place of another version."""
    changed = []
    async with db.transaction(NOBODY) as tx:
        for version in versions:
            before = await tx.value(
                queries.publish, version.app, version.name, version.digest, version.description,
                version.parameters, version.read_only, version.risk, version.timeout_seconds, version.on_uncertain,
                version.server, version.remote_name, version.implementation, version.hints,
            )  # fmt: skip
            if before is not None:
                changed.append(version)
    return changed


async def list_all(db: Database) -> list[ToolVersion]:
    async with db.transaction(NOBODY) as tx:
        return [parse(ToolVersion, row) for row in await tx.rows(queries.list_all)]


async def versions(db: Database, app: str, limit: int) -> list[PublishedTool]:
    async with db.transaction(NOBODY) as tx:
        return [parse(PublishedTool, row) for row in await tx.rows(queries.versions, app, limit)]


async def of_server(db: Database, app: str, server: str) -> list[ToolVersion]:
    """As it was last known to offer them."""
    async with db.transaction(NOBODY) as tx:
        return [parse(ToolVersion, row) for row in await tx.rows(queries.of_server, app, server)]


async def named(tx: Transaction, name: str, app: str | None) -> list[ToolVersion]:
    """The newest version in each app that has such a tool."""
    return [parse(ToolVersion, row) for row in await tx.rows(queries.named, name, app)]


async def version(tx: Transaction, app: str, name: str, digest: str) -> ToolVersion | None:
    return one(ToolVersion, await tx.row(queries.version, app, name, digest))


async def known_risks(tx: Transaction, names: Sequence[str]) -> dict[str, Risk]:
    """Of those that somebody published: the highest risk, in any app, with what a steward of the org confirmed."""
    rows = await tx.rows(queries.known_risks, tx.org, list(names))
    return {row["name"]: Risk(row["risk"]) for row in rows}


async def newest(tx: Transaction, app: str, name: str) -> ToolVersion | None:
    return one(ToolVersion, await tx.row(queries.newest, app, name))
