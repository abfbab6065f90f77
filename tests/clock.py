"""The database's time in a test: it stands where it was put, and moves only when told."""

from __future__ import annotations

from datetime import datetime, timedelta

import asyncpg

# Outside of schema public, whose tables all belong to tenants. The function is a definer's, so nobody needs a right.
_INSTALL = """
create schema clock;
create table clock.hand (at timestamptz not null);
insert into clock.hand values (clock_timestamp());
create or replace function public.plane_now() returns timestamptz
  language sql volatile parallel safe security definer set search_path = pg_catalog, pg_temp
  return (select at from clock.hand);
"""


class Clock:
    """Replaces ``plane_now()`` in one test database. Needs the migrating login."""

    def __init__(self, admin: asyncpg.Connection) -> None:
        self._admin = admin

    @classmethod
    async def install(cls, admin: asyncpg.Connection, at: datetime) -> Clock:
        await admin.execute(_INSTALL)
        clock = cls(admin)
        await clock.set(at)
        return clock

    async def set(self, at: datetime) -> None:
        await self._admin.execute("update clock.hand set at = $1", at)

    async def advance(self, by: timedelta) -> None:
        await self._admin.execute("update clock.hand set at = at + $1", by)
