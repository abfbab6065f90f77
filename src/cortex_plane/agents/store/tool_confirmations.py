"""Tool confirmations in SQL."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.agents.model.tool_confirmations import Confirmed, ToolConfirmation
from cortex_plane.agents.model.tools import Risk
from cortex_plane.db.database import Transaction
from cortex_plane.db.queries import Queries
from cortex_plane.db.rows import after, one, page
from cortex_plane.kernel.pages import Page, Position
from cortex_plane.kernel.values import parse

queries = Queries(__file__)


async def insert(
    tx: Transaction,
    id: UUID,
    *,
    app: str,
    tool_name: str,
    digest: str,
    read_only: bool,
    idempotent: bool,
    risk: Risk | None,
    note: str | None,
    confirmed_by: str,
    confirmed_by_id: UUID | None,
) -> None:
    await tx.rows(
        queries.insert, tx.org, id, app, tool_name, digest, read_only, idempotent, risk, note, confirmed_by,
        confirmed_by_id,
    )  # fmt: skip


async def revoke(tx: Transaction, app: str, tool_name: str, by: str) -> UUID | None:
    """The one that held; None: there was none."""
    found: UUID | None = await tx.value(queries.revoke, app, tool_name, by)
    return found


async def raise_version(tx: Transaction) -> None:
    """From now on whatever is judged by older confirmations is not sent."""
    await tx.rows(queries.raise_version, tx.org)


async def get(tx: Transaction, id: UUID) -> ToolConfirmation | None:
    return one(ToolConfirmation, await tx.row(queries.get, id))


async def list_page(
    tx: Transaction, position: Position | None, limit: int, holding: bool
) -> Page[ToolConfirmation]:
    return page(
        ToolConfirmation, await tx.rows(queries.list_page, *after(position), limit + 1, holding), limit
    )


async def holding(tx: Transaction) -> dict[tuple[str, str, str], Confirmed]:
    """By app, tool and digest."""
    return {
        (row["app"], row["tool_name"], row["digest"]): parse(Confirmed, row)
        for row in await tx.rows(queries.holding)
    }
