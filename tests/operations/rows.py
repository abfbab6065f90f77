"""Looking at all rows at once: what is there, whether anything changed, and which ids belong to whom."""

from __future__ import annotations

import re
from uuid import UUID

import asyncpg

OF_NO_ORG = frozenset(
    {"schema_migration", "worker", "tool_server", "tool_version", "plane_key", "credential_key"}
    | {"platform_policy", "platform_policy_version"}
)
_UUID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


async def _tables(admin: asyncpg.Connection) -> list[str]:
    rows = await admin.fetch(
        "select relname from pg_class where relnamespace = 'public'::regnamespace"
        " and relkind in ('r', 'p') and not relispartition order by 1"
    )
    return [row["relname"] for row in rows]


async def digests(admin: asyncpg.Connection) -> dict[str, str]:
    """A digest of every table. When a key was last used is left out: that is not a change of anything."""
    found: dict[str, str] = {}
    for table in await _tables(admin):
        found[table] = await admin.fetchval(
            "select md5(coalesce(string_agg(line, chr(10) order by line), '')) from"
            f" (select (to_jsonb(t) - 'last_used_at')::text as line from {table} t) as lines"
        )
    return found


async def ids_of(admin: asyncpg.Connection, org: UUID) -> set[str]:
    """Every id that stands anywhere in the rows of an org."""
    found = {str(org)}
    for table in await _tables(admin):
        owner = "id" if table == "org" else "org_id"
        if table in OF_NO_ORG:
            continue
        lines = await admin.fetch(f"select to_jsonb(t)::text as line from {table} t where {owner} = $1", org)
        for line in lines:
            found.update(_UUID.findall(line["line"]))
    return found
