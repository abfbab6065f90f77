"""Published tool versions in SQL."""

from __future__ import annotations

from collections.abc import Sequence

from cortex_plane.domain.tools import ToolVersion
from cortex_plane.domain.values import parse
from cortex_plane.storage.database import NOBODY, Database, Transaction
from cortex_plane.storage.queries import Queries
from cortex_plane.storage.rows import one

queries = Queries("tools")


async def publish(db: Database, versions: Sequence[ToolVersion]) -> None:
    async with db.transaction(NOBODY) as tx:
        for version in versions:
            await tx.rows(
                queries.publish, version.app, version.name, version.digest, version.description,
                version.parameters, version.read_only, version.risk, version.timeout_seconds, version.on_uncertain,
            )  # fmt: skip


async def list_all(db: Database) -> list[ToolVersion]:
    async with db.transaction(NOBODY) as tx:
        return [parse(ToolVersion, row) for row in await tx.rows(queries.list_all)]


async def newest(tx: Transaction, app: str, name: str) -> ToolVersion | None:
    return one(ToolVersion, await tx.row(queries.newest, app, name))
