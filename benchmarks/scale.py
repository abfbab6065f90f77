"""What rows that merely lie there cost: every hot verb, list and look at the clock, in an empty plane and in full ones.

    python -m benchmarks scale                          200,000 jobs, 100,000 events, 20,000 pending approvals
    python -m benchmarks.scale --jobs 10000000 --statements

Time is what counts, and pages of shared buffers are what can be counted: they are the same on a busy machine. A look into an index of a
million rows reads two or three pages more than one into an empty index, so pages are compared between the last two sizes, where
only what reads along with the rows grows.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import UUID

import asyncpg
import structlog
from tests.budgets.operations import OPERATIONS, Hands, Operation, Perform, Stage, unique
from tests.budgets.stage import stage
from tests.fixtures.servers import TestServer, prepare

from benchmarks.goals import goal, line, record
from cortex_plane import App
from cortex_plane.approvals.verbs import approvals
from cortex_plane.calls.verbs import deadlines
from cortex_plane.db.database import NOBODY
from cortex_plane.embedded import EmbeddedPostgres
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.verbs import steering, workers
from cortex_plane.proof.verbs import audit
from cortex_plane.sessions.verbs import events as session_events

JOBS = 200_000
GOAL = 1.3
PAGES_GOAL, PAGES_SLACK = 1.5, 10
"""Ten times the rows make every index one level deeper at most."""
WARM_UP, REPETITIONS = 8, 9
MOST_STEPS = 1_000_000
"""Jobs after these have no steps, calls, messages and audit entries: they would fill the disk."""
SECONDS = 300
"""Whatever takes longer hangs."""
_SETTINGS = {
    "autovacuum": "off",
    "fsync": "off",
    "full_page_writes": "off",
    "checkpoint_timeout": "1d",
    "max_wal_size": "8GB",
    "jit": "off",
    "shared_buffers": "1GB",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "all",
}
_HOT = (
    "step_with_effect",
    "step_that_reads",
    "step_of_code",
    "claim",
    "approval_request",
    "decision",
    "guarded_call",
    "message",
    "first_message",
)

_PLOTTED = (
    "step_with_effect", "claim", "decision", "guarded_call", "message", "look at the clock", "inbox page",
    "list of approvals", "list of jobs", "list of calls",
)  # fmt: skip


@dataclass(frozen=True)
class Size:
    jobs: int

    @property
    def events(self) -> int:
        return self.jobs // 2

    @property
    def approvals(self) -> int:
        return self.jobs // 10


# The rows --------------------------------------------------------------------------------------------------------

_COLUMNS = """
select a.attname from pg_attribute a
where a.attrelid = $1::text::regclass and a.attnum > 0 and not a.attisdropped and a.attgenerated = '' and a.attidentity = ''
order by a.attnum
"""
SESSION, JOB, CALL, APPROVAL = 1, 2, 3, 4
ASKING = 16
"""Ids of what belongs to a pending approval are apart from those of other jobs."""


def uid(kind: int, n: str = "n") -> str:
    """The n-th id of a kind, older than every id that the plane makes now."""
    return f"('0190' || lpad(to_hex({n}), 8, '0') || '70008000' || lpad(to_hex({kind}), 12, '0'))::uuid"


@dataclass(frozen=True)
class Rows:
    """Copies of rows that the plane wrote itself, as its owner: no triggers, no references, no row-level security."""

    connection: asyncpg.Connection
    org_id: UUID
    strict_id: UUID

    async def fill(self, before: Size, after: Size) -> None:
        await self.connection.execute("set session_replication_role = replica")
        # A quarter belongs to other orgs, the rest to the one that is looked at. Times are those of ten days, in order.
        org = f"case when n % 4 = 3 then md5('org' || n % 50)::uuid else '{self.org_id}'::uuid end"
        at = f"plane_now() - interval '10 days' + interval '9 days' * n / {max(after.jobs, 1)}"
        jobs = (before.jobs + 1, after.jobs)
        times = {"created_at": at, "updated_at": at}
        await self._copy(
            jobs, "session", "kind = 'programmatic'", org_id=org, id=uid(SESSION), status="'ACTIVE'", **times
        )
        await self._copy(jobs, "session_head", "", org_id=org, session_id=uid(SESSION))
        status = "(array['COMPLETED', 'COMPLETED', 'COMPLETED', 'COMPLETED', 'FAILED', 'CANCELLED', 'SLEEPING', 'PENDING'])[1 + n % 8]"
        over = "n % 8 < 6"
        await self._copy(
            jobs, "job", "kind = 'task' and checkpoint is not null", org_id=org, id=uid(JOB), session_id=uid(SESSION),
            status=status, app="'elsewhere'", finished_at=f"case when {over} then {at} end", error_message="'x'", holds="'{}'",
            runnable_at=f"case when {over} then null when n % 8 = 6 then plane_now() + interval '1 day' else {at} end",
            held_at="null", cancel_requested_at="null", open_approvals="0", next_retry_at="null", wake_at="null", **times,
        )  # fmt: skip
        await self._copy(jobs, "job_history", "", org_id=org, job_id=uid(JOB), created_at=at)
        jobs = (jobs[0], min(jobs[1], MOST_STEPS))
        await self._copy(jobs, "step", "", org_id=org, job_id=uid(JOB), created_at=at, started_at=at)
        await self._copy(
            jobs, "message", "", org_id=org, session_id=uid(SESSION), seq="1", job_id="null", created_at=at
        )
        call = {"id": uid(CALL), "job_id": uid(JOB), "created_at": at, "finished_at": at}
        await self._copy(jobs, "tool_call", "status = 'completed'", org_id=org, **call)
        await self._copy(
            jobs,
            "external_call",
            "",
            org_id=org,
            call_id=uid(CALL),
            session_id=uid(SESSION),
            job_id=uid(JOB),
            key=f"{uid(CALL)}::text",
            settle_at="null",
            created_at=at,
        )
        await self._copy(
            jobs,
            "audit_entry",
            "session_id is not null",
            org_id=org,
            session_id=uid(SESSION),
            seq="1",
            job_id=uid(JOB),
            xid="'3'::xid8",
            created_at=at,
        )
        of_session = uid(SESSION, f"1 + n % {max(after.jobs, 1)}")
        await self._copy(
            (before.events + 1, after.events), "event", "session_id is not null", org_id=f"'{self.org_id}'::uuid",
            session_id=of_session, seq="1000 + n", job_id="null", created_at=f"plane_now() - interval '10 days' + interval '9 days' * n / {max(after.events, 1)}",
        )  # fmt: skip
        await self._ask((before.approvals + 1, after.approvals))
        await self.connection.execute("reset session_replication_role")
        await self.connection.execute("vacuum analyze")

    async def _ask(self, numbers: tuple[int, int]) -> None:
        """Approvals that are pending, each of a job of its own that waits for it."""
        org = f"'{self.strict_id}'::uuid"
        at = f"plane_now() - interval '1 day' + interval '1 minute' * n / {numbers[1]}" if numbers[1] else "plane_now()"
        session, job, call = (uid(kind + ASKING) for kind in (SESSION, JOB, CALL))
        times = {"created_at": at, "updated_at": at}
        await self._copy(
            numbers, "session", "kind = 'programmatic'", org_id=org, id=session, status="'ACTIVE'", **times
        )
        await self._copy(numbers, "session_head", "", org_id=org, session_id=session)
        await self._copy(
            numbers, "job", "kind = 'task' and checkpoint is not null", org_id=org, id=job, session_id=session, status="'WAITING_FOR_APPROVAL'",
            app="'elsewhere'", open_approvals="1", finished_at="null", runnable_at="null", holds="'{}'", held_at="null",
            cancel_requested_at="null", next_retry_at="null", wake_at="null", **times,
        )  # fmt: skip
        asked = {"session_id": session, "job_id": job}
        due = "plane_now() + interval '1 day' + interval '1 second' * n"
        await self._copy(
            numbers,
            "tool_call",
            "status in ('awaiting', 'rejected', 'approved')",
            org_id=org,
            id=call,
            job_id=job,
            status="'awaiting'",
            created_at=at,
            finished_at="null",
        )
        await self._copy(
            numbers, "approval_request", "kind = 'call'", org_id=org, id=uid(APPROVAL), **asked, status="'pending'",
            input_hash="sha256(n::text::bytea)", requested_at=at, deadline=due, next_action_at=due, resolved_at="null",
            resolved_by="null", resolved_by_name="null", resolved_via="null", resolution_reason="null",
        )  # fmt: skip
        await self._copy(
            numbers,
            "approval_invocation",
            "",
            org_id=org,
            approval_id=uid(APPROVAL),
            call_id=call,
            job_id=job,
            created_at=at,
        )
        await self._copy(
            numbers, "approval_event", "", org_id=org, approval_id=uid(APPROVAL), idempotency_key="null", created_at=at
        )

    async def _copy(self, numbers: tuple[int, int], table: str, model: str, **changes: str) -> None:
        columns = [row["attname"] for row in await self.connection.fetch(_COLUMNS, table)]
        names = ", ".join(f'"{name}"' for name in columns)
        values = ", ".join(changes.get(name, f't."{name}"') for name in columns)
        source = f"(select * from {table} {f'where {model}' if model else ''} limit 1)"
        first, last = numbers
        for start in range(first, last + 1, 500_000):
            await self.connection.execute(
                f"insert into {table} ({names}) select {values} from {source} t, generate_series($1::integer, $2) n",
                start, min(last, start + 499_999),
            )  # fmt: skip


# What is measured ------------------------------------------------------------------------------------------------


def _get(path: str, *, strict: bool = False) -> Operation:
    @asynccontextmanager
    async def operation(on: Stage, _: int) -> AsyncIterator[Perform]:
        async with on.client((on.strict if strict else on.world).admin.secret) as client:

            async def perform() -> None:
                answer = await client.get(path)
                assert answer.status_code == 200, answer.text

            yield perform

    return operation


def _second_page(path: str, *, strict: bool = False) -> Operation:
    @asynccontextmanager
    async def operation(on: Stage, _: int) -> AsyncIterator[Perform]:
        async with on.client((on.strict if strict else on.world).admin.secret) as client:
            first = (await client.get(path)).json()
            joint = "&" if "?" in path else "?"
            more = first.get("next_cursor") or first.get("cursor")

            async def perform() -> None:
                answer = await client.get(f"{path}{joint}cursor={more}" if more else path)
                assert answer.status_code == 200, answer.text

            yield perform

    return operation


def _verb(act: Callable[[Stage], Awaitable[object]]) -> Operation:
    @asynccontextmanager
    async def operation(on: Stage, _: int) -> AsyncIterator[Perform]:
        yield lambda: act(on)

    return operation


@asynccontextmanager
async def idle_poll(on: Stage, _: int) -> AsyncIterator[Perform]:
    """A worker whose apps have no work asks for some."""
    hands = Hands(on.world, App(unique("idle")))
    await hands.register()
    apps = sorted(hands.worker.apps)
    yield lambda: jobs_store.claim_jobs(on.world.db, hands.worker.id, apps, 10, NOBODY)


@asynccontextmanager
async def events(on: Stage, _: int) -> AsyncIterator[Perform]:
    """The events of one session."""
    async with on.client(on.world.admin.secret) as client:
        session = UUID((await client.get("/v1/sessions?limit=1")).json()["items"][0]["id"])
    yield lambda: session_events.of_session(on.world.db, on.world.admin.actor, session, 0)


MEASURED: dict[str, Operation] = {
    **{name: OPERATIONS[name] for name in _HOT},
    "poll that finds nothing": idle_poll,
    "look at the clock": _verb(lambda on: deadlines.tick(on.world.db, NOBODY, "scale")),
    "time of the next deadline": _verb(lambda on: deadlines.seconds_to_next(on.world.db)),
    "adoption": _verb(lambda on: workers.adopt_jobs(on.world.db, NOBODY, "scale", 3)),
    "signals that wait": _verb(lambda on: steering.deliver_waiting_signals(on.world.db)),
    "signed roots": _verb(lambda on: audit.keep_roots(on.world.db)),
    "inbox page": _verb(lambda on: approvals.list_inbox(on.strict.db, on.strict.admin.actor, 50)),
    "inbox, what ended": _verb(lambda on: approvals.list_settled(on.strict.db, on.strict.admin.actor, 20)),
    "list of approvals": _get("/v1/approvals", strict=True),
    "list of approvals, pending": _get("/v1/approvals?status=pending", strict=True),
    "list of approvals, page 2": _second_page("/v1/approvals?status=pending", strict=True),
    "list of jobs": _get("/v1/jobs"),
    "list of jobs, failed": _get("/v1/jobs?status=FAILED"),
    "list of jobs, page 2": _second_page("/v1/jobs"),
    "list of sessions": _get("/v1/sessions"),
    "list of sessions, page 2": _second_page("/v1/sessions"),
    "list of calls": _get("/v1/calls"),
    "list of calls, one status": _get("/v1/calls?status=intended"),
    "events of a session": events,
    "list of deliveries": _get("/v1/deliveries"),
}


@dataclass(frozen=True)
class Cost:
    pages: float
    milliseconds: float
    statements: dict[str, float] = field(default_factory=dict)
    """Pages by statement, those inside of functions too."""


_STATEMENTS = """
select s.toplevel, s.query, (s.shared_blks_hit + s.shared_blks_read)::float8 as pages, s.total_exec_time as milliseconds
from pg_stat_statements s join pg_roles r on r.oid = s.userid
where s.dbid = (select oid from pg_database where datname = current_database()) and not r.rolsuper
"""


async def measure(on: Stage, admin: asyncpg.Connection, operation: Operation) -> Cost:
    async with asyncio.timeout(SECONDS), operation(on, WARM_UP + REPETITIONS) as perform:
        for _ in range(WARM_UP):
            await perform()
        await admin.execute("select pg_stat_statements_reset()")
        for _ in range(REPETITIONS):
            await perform()
        rows = await admin.fetch(_STATEMENTS)
    pages = sum(row["pages"] for row in rows if row["toplevel"]) / REPETITIONS
    milliseconds = sum(row["milliseconds"] for row in rows if row["toplevel"]) / REPETITIONS
    statements: dict[str, float] = {}
    for row in rows:
        text = " ".join(row["query"].split())
        statements[text] = statements.get(text, 0) + row["pages"] / REPETITIONS
    return Cost(pages, milliseconds, statements)


async def measure_all(server: TestServer, sizes: list[Size], names: list[str]) -> dict[str, list[Cost]]:
    costs: dict[str, list[Cost]] = {name: [] for name in names}
    admin = await asyncpg.connect(server.admin(server.template))
    try:
        await admin.execute("create extension if not exists pg_stat_statements")
        async with stage(server.app(server.template)) as on:
            for name in _HOT:  # what is copied later
                async with OPERATIONS[name](on, 1) as perform:
                    await perform()
            rows, before = Rows(admin, on.world.org_id, on.strict.org_id), Size(0)
            for size in sizes:
                started = time.perf_counter()
                await rows.fill(before, size)
                before = size
                print(f"  {size.jobs:,} jobs, {size.events:,} events, {size.approvals:,} pending approvals"
                      f" ({time.perf_counter() - started:.0f} s to write)", flush=True)  # fmt: skip
                for name in names:
                    costs[name].append(await measure(on, admin, MEASURED[name]))
    finally:
        await admin.close()
    return costs


@contextmanager
def server() -> Iterator[TestServer]:
    with tempfile.TemporaryDirectory(prefix="cortex-scale-") as folder:
        Path(folder).chmod(0o711)
        with EmbeddedPostgres(Path(folder), settings=_SETTINGS) as started:
            yield asyncio.run(prepare("scale", started.url()))


def reads_along(costs: dict[str, list[Cost]]) -> set[str]:
    """What reads more pages the more rows there are."""
    return {name for name, known in costs.items() if known[-1].pages > PAGES_GOAL * known[-2].pages + PAGES_SLACK}


def sizes_up_to(jobs: int) -> list[Size]:
    """With fewer rows than a page has, a list would have nothing to do: the first is a small plane."""
    return [Size(min(1_000, jobs // 100)), Size(jobs // 10), Size(jobs)]


def run(*, jobs: int = JOBS, statements: bool = False, names: list[str] | None = None) -> bool:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    sizes = sizes_up_to(jobs)
    print("\nwhat rows that merely lie there cost")
    with server() as started:
        costs = asyncio.run(measure_all(started, sizes, names or list(MEASURED)))
    shown = "".join(f"{f'{size.jobs:,}':>12}" for size in sizes)
    print(f"\n{'':36}{'pages with so many jobs':>36}{'':8}{'milliseconds':>34}")
    print(f"{'':36}{shown}{'ratio':>8}{shown}{'ratio':>8}")
    met = True
    for name, known in costs.items():
        pages, times = [cost.pages for cost in known], [cost.milliseconds for cost in known]
        grown, slower = pages[-1] / max(pages[-2], 1), times[-1] / max(times[0], 0.001)
        missed = name in reads_along(costs)
        print(
            f"{'  ' + name:36}{''.join(f'{n:>12,.0f}' for n in pages)}{grown:>8.2f}"
            f"{''.join(f'{n:>12.2f}' for n in times)}{slower:>8.2f}{'  reads along with the rows' if missed else ''}"
        )
        met = goal("growth", f"{name}: time to that of the small plane", slower, "≤", GOAL) and met and not missed
        if name in _PLOTTED:
            line("growth", name, [(size.jobs, n) for size, n in zip(sizes, times, strict=True)])
        record("scale", name=name, jobs=[size.jobs for size in sizes], pages=pages, milliseconds=times)
        if statements and missed:
            for text, most in sorted(known[-1].statements.items(), key=lambda item: -item[1])[:6]:
                print(f"      {known[-2].statements.get(text, 0):>10,.0f}{most:>10,.0f}  {text[:200]}")
    return met


def main() -> int:
    parser = argparse.ArgumentParser(description="What rows that merely lie there cost.")
    parser.add_argument("names", nargs="*")
    parser.add_argument("--jobs", type=int, default=JOBS)
    parser.add_argument("--statements", action="store_true", help="name the statements of what grows")
    asked = parser.parse_args()
    return 0 if run(jobs=asked.jobs, statements=asked.statements, names=asked.names or None) else 3


if __name__ == "__main__":
    sys.exit(main())
