"""What an operation costs in things that can be counted: the same on every machine, however busy it is.

Round trips are seen by the driver; commits, rows and bytes are read from the server's own log (pg_walinspect), sequential scans
from its statistics, calls of Python functions by a profile function. Each repetition is counted by itself and the median is
taken, because a page that is full, split or pruned costs one repetition of many a little more.
"""

from __future__ import annotations

import asyncio
import dis
import math
import re
import statistics
import sys
import sysconfig
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import asyncpg

from cortex_plane.db.database import Database
from tests.budgets.operations import Operation, Stage
from tests.budgets.stage import CROWD

WARM_UP = 8
"""Functions of the database plan anew for their first five calls."""
REPETITIONS = 9
PYTHON = (3, 11)
"""Calls are counted with this version alone: others inline comprehensions and compile other code."""


@dataclass(frozen=True)
class Counts:
    """Of one operation."""

    round_trips: int
    """Statements that the driver sends and waits for."""
    commits: int
    """Transactions in the server's log: those that wrote something."""
    rows: int
    """Inserted, updated and deleted, in tables of the plane."""
    wal_bytes: int
    """Of the server's log, without full pages."""
    sequential_scans: int
    """Of tables that hold many rows; one in any of the repetitions counts."""
    python_calls: int | None
    """Functions of Python that begin, the event loop's own left out; None with another version of Python."""


@dataclass
class Parts:
    """What the last repetition's counts are made of: statements, tables, functions."""

    statements: Counter[str] = field(default_factory=Counter)
    rows: Counter[str] = field(default_factory=Counter)
    wal_bytes: Counter[str] = field(default_factory=Counter)
    sequential_scans: Counter[str] = field(default_factory=Counter)
    python_calls: Counter[str] = field(default_factory=Counter)

    def largest(self, name: str, most: int = 12) -> list[str]:
        """Of one of the counts."""
        known: Counter[str] = getattr(self, "statements" if name in ("round_trips", "commits") else name)
        lines = [f"{count:>7}  {what}" for what, count in known.most_common(most)]
        left = len(known) - most
        return [*lines, *([f"{'':>7}  and {left} more"] if left > 0 else [])]


# Python ----------------------------------------------------------------------------------------------------------

_LIBRARY = Path(sysconfig.get_paths()["stdlib"])
_LOOP = (str(_LIBRARY / "asyncio"), str(_LIBRARY / "selectors.py"))
"""How often the loop turns depends on how the bytes of an answer arrive."""


class PythonCalls:
    """Counts functions that begin; a coroutine that goes on is no new call."""

    def __init__(self) -> None:
        self.counts: Counter[CodeType] = Counter()
        self._starts: dict[CodeType, int] = {}

    @contextmanager
    def counted(self) -> Iterator[None]:
        self.counts.clear()
        before = sys.getprofile()
        sys.setprofile(self._count)
        try:
            yield
        finally:
            sys.setprofile(before)

    def _count(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            code = frame.f_code
            start = self._starts.get(code)
            if start is None:
                start = self._starts[code] = _start_of(code)
            if frame.f_lasti == start:
                self.counts[code] += 1

    @property
    def named(self) -> Counter[str]:
        named: Counter[str] = Counter()
        for code, count in self.counts.items():
            if is_counted(code):
                named[f"{_short_path(code.co_filename)}:{code.co_qualname}"] += count
        return named


def is_counted(code: CodeType) -> bool:
    return not code.co_filename.startswith((*_LOOP, str(Path(__file__).parent), "<frozen"))


def _start_of(code: CodeType) -> int:
    """Where a call of it begins. Whatever goes on after a pause goes on elsewhere. -1: it is not counted."""
    if not is_counted(code):
        return -1
    return next((i.offset for i in dis.get_instructions(code) if i.opname == "RESUME" and i.arg == 0), -1)


def _short_path(path: str) -> str:
    return path.removeprefix(f"{_LIBRARY}/").rpartition("/site-packages/")[2].rpartition("/src/")[2]


# The server ------------------------------------------------------------------------------------------------------

# The position after a message that is flushed: everything before it can be read.
_POSITION = "select pg_logical_emit_message(false, 'budgets', '', true)"
# Left out: what the server writes on its own account, and how pages are split and pruned, which depends on how full they were.
_LOG = """
with record as (
  select * from pg_get_wal_records_info($1, $2)
  where resource_manager not in ('XLOG', 'Standby', 'LogicalMessage')
    and not (resource_manager = 'Btree' and record_type not like 'INSERT_LEAF%')
    and not (resource_manager = 'Heap2' and record_type like 'PRUNE%')),
place as (
  select distinct on (b.start_lsn) b.start_lsn,
    coalesce(parent.oid, indexed.oid, c.oid) as relation, c.relkind
  from pg_get_wal_block_info($1, $2, false) b
  left join pg_class c on pg_relation_filenode(c.oid) = b.relfilenode
  left join pg_class indexed on indexed.oid = (select i.indrelid from pg_index i where i.indexrelid = c.oid)
  left join pg_class parent on parent.reltoastrelid = coalesce(indexed.oid, c.oid) and parent.relkind = 'r'
  order by b.start_lsn, b.block_id)
select case when r.resource_manager = 'Transaction' then r.resource_manager
    else coalesce(p.relation::regclass::text || case p.relkind when 'i' then ', indexes' when 't' then ', toast' else '' end,
      r.resource_manager) end as place,
  count(*) filter (where r.resource_manager = 'Transaction' and r.record_type like 'COMMIT%') as commits,
  count(*) filter (where p.relkind = 'r' and r.resource_manager = 'Heap'
    and r.record_type ~ '^(INSERT|UPDATE|HOT_UPDATE|DELETE)') as rows,
  sum(r.record_length)::bigint as bytes
from record r left join place p using (start_lsn)
group by 1
"""
_SCANS = """
select relid::regclass::text as name, seq_scan from pg_stat_user_tables where n_live_tup >= $1
"""


def _short_statement(text: str) -> str:
    return re.sub(r"\(\$1, .*\$\d+\)$", "(…)", " ".join(text.split()))[:120]


class Meter:
    """Counts what happens on the connections of one plane."""

    def __init__(self, db: Database, admin: asyncpg.Connection) -> None:
        self._db, self._admin = db, admin
        self._statements: list[str] = []

    @classmethod
    @asynccontextmanager
    async def attached(cls, db: Database, admin_url: str) -> AsyncIterator[Meter]:
        admin = await asyncpg.connect(admin_url)
        try:
            await admin.execute("create extension if not exists pg_walinspect")
            meter = cls(db, admin)
            async with meter._connections() as connections:
                for connection in connections:
                    connection.add_query_logger(meter._hear)
            yield meter
        finally:
            await admin.close()

    def _hear(self, query: Any) -> None:
        self._statements.append(query.query)

    @asynccontextmanager
    async def _connections(self) -> AsyncIterator[Sequence[Any]]:
        await self._db._shared.return_connections()
        async with AsyncExitStack() as stack:
            pools = {pool: pool.get_max_size() for pool in (self._db._pool, *self._db._pools.values())}
            yield [await stack.enter_async_context(pool.acquire()) for pool, n in pools.items() for _ in range(n)]

    async def _settle(self) -> None:
        """A hint of work is sent in the background; it belongs to the operation before."""
        task = self._db.hints._work._task
        if task is not None:
            await task

    async def count(self, operation: Operation, stage: Stage) -> tuple[Counts, Parts]:
        known: list[dict[str, int]] = []
        calls, parts = PythonCalls(), Parts()
        async with operation(stage, WARM_UP + REPETITIONS) as perform:
            for _ in range(WARM_UP):
                await perform()
            await self._settle()
            scans = await self._scans()
            for _ in range(REPETITIONS):
                start = await self._admin.fetchval(_POSITION)
                self._statements.clear()
                with calls.counted():
                    await perform()
                    await self._settle()
                await asyncio.sleep(0)  # the driver calls query loggers in the next round of the event loop
                statements = Counter(map(_short_statement, self._statements))
                end = await self._admin.fetchval(_POSITION)
                rows = await self._admin.fetch(_LOG, start, end)
                parts = Parts(
                    statements,
                    Counter({row["place"]: row["rows"] for row in rows if row["rows"]}),
                    Counter({row["place"]: row["bytes"] for row in rows}),
                    Counter(),
                    calls.named,
                )
                known.append(
                    {
                        "round_trips": statements.total(),
                        "commits": sum(row["commits"] for row in rows),
                        "rows": parts.rows.total(),
                        "wal_bytes": parts.wal_bytes.total(),
                        "python_calls": parts.python_calls.total(),
                    }
                )
            parts.sequential_scans = await self._scans() - scans
        medians: dict[str, Any] = {name: int(statistics.median(each[name] for each in known)) for name in known[0]}
        medians["sequential_scans"] = math.ceil(parts.sequential_scans.total() / REPETITIONS)
        if sys.version_info[:2] != PYTHON:
            medians["python_calls"] = None
        return Counts(**medians), parts

    async def _scans(self) -> Counter[str]:
        async with self._connections() as connections:
            for connection in connections:
                await connection.execute("select pg_stat_force_next_flush()")
        await self._admin.execute("select pg_stat_clear_snapshot()")
        return Counter({row["name"]: row["seq_scan"] for row in await self._admin.fetch(_SCANS, CROWD // 2)})
