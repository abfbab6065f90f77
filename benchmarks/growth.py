"""A job of a thousand steps whose conversation grows: what it writes to the log and what it keeps, against LangGraph."""

from __future__ import annotations

import asyncio
from typing import Any

import asyncpg

from benchmarks.goals import goal, line, table
from benchmarks.peers.databases import fresh_database
from benchmarks.peers.payloads import model_response
from benchmarks.plane import plane, working
from benchmarks.steps import completions
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.worker.tools.app import App

STEPS = 1000
LOG_GOAL, KEPT_GOAL = 7.0, 3.0
OURS = "job, step, tool_call, event, audit_entry, session_head, message, job_history, stored_result"


async def own_growth(url: str, steps: int) -> tuple[int, int, int]:
    """Log bytes, kept bytes, raw bytes of one job in which the model says 1 KB per step and calls a tool."""
    async with plane(url) as made:
        app = _app()
        script: list[dict[str, Any]] = [{"text": "{message}", "calls": [{"tool": "look"}], "repeat": True}]
        await made.agent("talker", script, max_iterations=steps)
        connection = await asyncpg.connect(url)
        await compact(connection)
        before = await _kept(connection)
        await connection.execute("checkpoint")
        start = await connection.fetchval("select pg_current_wal_lsn()")
        id = (await jobs.submit(made.db, made.actor, _draft())).id
        async with working(made, app, 1), completions(url) as waiting:
            ended = waiting[id] = asyncio.Event()
            await ended.wait()
        wal = await connection.fetchval("select pg_current_wal_lsn() - $1::pg_lsn", start)
        raw = await connection.fetchval("select sum(length(response::text)) from step where job_id = $1", id)
        results = await connection.fetchval("select sum(length(result::text)) from tool_call where job_id = $1", id)
        await compact(connection)
        kept = await _kept(connection) - before
        await connection.close()
        return int(wal), int(kept), int(raw + results)


def _draft() -> JobDraft:
    return JobDraft(agent="talker", payload={"text": model_response(1)})


def _app() -> App:
    app = App("bench")

    @app.tool(read_only=True)
    async def look() -> str:
        """Looks."""
        return "seen"

    return app


async def compact(connection: asyncpg.Connection) -> None:
    """What is kept is what is alive; what waits to be vacuumed is not, for nobody."""
    await connection.execute("vacuum full")


async def _kept(connection: asyncpg.Connection) -> int:
    names = ", ".join(f"('{name.strip()}')" for name in OURS.split(","))
    return int(
        await connection.fetchval(
            f"""
            select sum(pg_total_relation_size(c.oid)) from pg_class c
            where c.relkind in ('r', 'p') and c.relnamespace = 'public'::regnamespace and (
              c.relname in (values {names}) or c.relname like 'event\\_%')
            """
        )
    )


async def run(admin_url: str, *, steps: int = STEPS) -> bool:
    print(f"\n{f'{steps} steps of 1 KB each':36}{'log':>10}{'kept':>10}")
    met = True
    rows: dict[str, tuple[int, int, int]] = {}
    for count in (steps // 4, steps):
        async with fresh_database(admin_url, "growth") as url:
            rows[f"ours, {count} steps"] = await own_growth(url, count)
    try:
        from benchmarks.peers.langgraph_steps import growing_conversation
    except ImportError as missing:
        print(f"  LangGraph is left out: {missing}")
    else:
        for delta in (False, True):
            async with fresh_database(admin_url, "growth") as url:
                grown = await growing_conversation(url, steps, delta=delta)
            name = "LangGraph, its DeltaChannel (beta)" if delta else "LangGraph"
            rows[name] = (grown.wal_bytes, grown.kept_bytes, grown.raw_bytes)
    for name, (wal, kept, raw) in rows.items():
        print(f"{'  ' + name:36}{wal / raw:>9.1f}×{kept / raw:>9.1f}×")
    table("log per raw byte", "×", {name: wal / raw for name, (wal, _, raw) in rows.items()})
    table("kept per raw byte", "×", {name: kept / raw for name, (_, kept, raw) in rows.items()})
    for count in (steps // 4, steps):
        wal, kept, raw = rows[f"ours, {count} steps"]
        met = goal("log per raw byte of a step", f"log, {count} steps", wal / raw, "≤", LOG_GOAL) and met
        met = goal("bytes kept", f"kept, {count} steps", kept / raw, "≤", KEPT_GOAL) and met
    sizes = {name: [(steps, wal / 1e6)] for name, (wal, _, _) in rows.items() if not name.startswith("ours")}
    sizes["ours"] = [(count, rows[f"ours, {count} steps"][0] / 1e6) for count in (steps // 4, steps)]
    for name, points in sizes.items():
        line("bytes", name, [(0, 0), *points])
    return met
