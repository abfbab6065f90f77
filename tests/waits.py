"""Who waits for somebody's lock, as the database sees it at this moment."""

from __future__ import annotations

import asyncpg


async def lock_waiters(admin: asyncpg.Connection, statement: str = "") -> int:
    """Backends of this database that wait for a lock, with ``statement`` in what they run.

    Within a transaction PostgreSQL shows the activity of its first look again and again, unless it is told not to.
    """
    await admin.execute("select pg_stat_clear_snapshot()")
    count: int = await admin.fetchval(
        """
        select count(*) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock' and strpos(query, $1) > 0
        """,
        statement,
    )
    return count
