"""Past calls in SQL, as a simulation replays them."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from datetime import datetime

from cortex_plane.db.database import Queries, Transaction
from cortex_plane.kernel.values import parse
from cortex_plane.policies.rules.simulations import PastCall

queries = Queries(__file__)


async def now(tx: Transaction) -> datetime:
    at: datetime = await tx.value(queries.now)
    return at


async def calls(
    tx: Transaction, since: datetime, until: datetime, limit: int, batch: int
) -> AsyncGenerator[list[PastCall], None]:
    """Newest first, a few at a time: arguments may be large."""
    found: list[PastCall] = []
    async for row in tx.stream(queries.calls, since, until, limit, batch=batch):
        found.append(parse(PastCall, row))
        if len(found) == batch:
            yield found
            found = []
    if found:
        yield found
