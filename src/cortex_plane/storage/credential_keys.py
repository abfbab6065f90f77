"""The credential key in SQL: when credentials end, and how rows from before it get their MACs."""

from __future__ import annotations

from datetime import datetime, timedelta

from cortex_plane.storage.database import Transaction
from cortex_plane.storage.queries import Queries

queries = Queries("credential_keys")


async def ends_after(tx: Transaction, life: timedelta) -> datetime:
    """When something ends that lives for so long from now. The MAC covers it, so it is known before the row is written."""
    now: datetime = await tx.value(queries.now)
    return now + life
