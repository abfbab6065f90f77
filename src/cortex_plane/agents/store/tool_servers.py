"""How workers' MCP servers are, in SQL."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.agents.model.tool_confirmations import ToolServer
from cortex_plane.db.database import NOBODY, Database
from cortex_plane.db.queries import Queries
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def tell(
    db: Database, app: str, name: str, worker: UUID, state: str, reason: str | None, tools: int
) -> None:
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.tell, app, name, worker, state, reason, tools)


async def forget(db: Database, worker: UUID) -> None:
    async with db.transaction(NOBODY) as tx:
        await tx.rows(queries.forget, worker)


async def list_all(db: Database) -> list[ToolServer]:
    async with db.transaction(NOBODY) as tx:
        return [parse(ToolServer, row) for row in await tx.rows(queries.list_all)]
