"""LangGraph: graphs whose checkpoints an AsyncPostgresSaver keeps.

``durability="sync"`` is the mode its documentation gives for work that must not be lost: a step's checkpoint is
committed before the next step starts. (The default, "async", may lose the last step; "exit" loses all of them.)
The pool is set up as the saver's own ``from_conn_string`` sets up its connection: autocommit, prepared statements,
and has one connection per concurrent job. A saver holds one lock around every statement, so that a single saver
would serialise all jobs; each concurrent job gets a saver of its own on the shared pool, which favours LangGraph.
"""

from __future__ import annotations

import asyncio
import logging
import operator
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, TypedDict
from uuid import uuid4

import asyncpg
from langgraph.channels.delta import DeltaChannel
from langgraph.checkpoint.postgres.aio import AsyncPostgresSaver
from langgraph.graph import END, START, StateGraph
from psycopg.rows import dict_row
from psycopg_pool import AsyncConnectionPool

from benchmarks.measuring import seconds_each
from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect, model_response

os.environ["LANGSMITH_TRACING"] = "false"  # or it would report every run to its maker's servers
logging.getLogger("langgraph").setLevel(logging.CRITICAL)
logging.getLogger("psycopg").setLevel(logging.CRITICAL)

TEN = 10
TABLES = ("checkpoints", "checkpoint_blobs", "checkpoint_writes", "checkpoint_migrations")


class Growth(NamedTuple):
    wal_bytes: int
    """Written to the log by the whole conversation."""
    kept_bytes: int
    """Still held in its tables and their indexes at the end."""
    raw_bytes: int
    """The conversation itself."""


class Step(TypedDict):
    arguments: dict[str, Any]
    result: dict[str, Any]
    left: int


class Conversation(TypedDict):
    messages: Annotated[list[dict[str, str]], operator.add]
    left: int


def _extend(known: list[dict[str, str]], writes: list[list[dict[str, str]]]) -> list[dict[str, str]]:
    return [*known, *(message for write in writes for message in write)]


class DeltaConversation(TypedDict):
    messages: Annotated[list[dict[str, str]], DeltaChannel(_extend)]
    left: int


async def _act(state: Step) -> dict[str, Any]:
    return {"result": await effect(state["arguments"]), "left": state["left"] - 1}


async def _speak(state: Any) -> dict[str, Any]:
    said = {"role": "assistant", "content": model_response(state["left"])}
    return {"messages": [said], "left": state["left"] - 1}


def _again(state: Any) -> str:
    return "step" if state["left"] > 0 else END


def _loop(kind: Any, node: Any, saver: Any) -> Any:
    graph = StateGraph(kind)
    graph.add_node("step", node)
    graph.add_edge(START, "step")
    graph.add_conditional_edges("step", _again, ["step", END])
    return graph.compile(checkpointer=saver)


def _chain(saver: Any) -> Any:
    graph = StateGraph(Step)
    names = [f"step_{number}" for number in range(TEN)]
    for name in names:
        graph.add_node(name, _act)
    for one, other in zip([START, *names], [*names, END], strict=True):
        graph.add_edge(one, other)
    return graph.compile(checkpointer=saver)


@asynccontextmanager
async def _savers(url: str, count: int) -> AsyncIterator[list[Any]]:
    settings = {"autocommit": True, "prepare_threshold": 0, "row_factory": dict_row}
    async with AsyncConnectionPool(url, min_size=count, max_size=count, kwargs=settings, open=False) as pool:
        await pool.wait()
        savers = [AsyncPostgresSaver(pool) for _ in range(count)]
        await savers[0].setup()
        yield savers


async def _run(graph: Any, state: dict[str, Any], steps: int) -> None:
    config = {"configurable": {"thread_id": str(uuid4())}, "recursion_limit": steps + 10}
    await graph.ainvoke(state, config, durability="sync")


async def side_effecting_step(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``concurrency`` long jobs that share ``n`` steps: what one more step costs."""
    each = n // concurrency
    async with _savers(url, concurrency) as savers:
        graphs = [_loop(Step, _act, saver) for saver in savers]

        async def job(number: int, steps: int) -> None:
            await _run(graphs[number], {"arguments": TOOL_ARGUMENTS, "left": steps}, steps)

        await seconds_each(lambda number: job(number, 3), concurrency, concurrency)
        return each / await seconds_each(lambda number: job(number, each), concurrency, concurrency)


async def ten_step_jobs(url: str, n: int, concurrency: int) -> float:
    """Steps per second of ``n`` whole jobs, from their creation to their completion."""
    async with _savers(url, concurrency) as savers:
        free: asyncio.Queue[Any] = asyncio.Queue()
        for saver in savers:
            free.put_nowait(_chain(saver))

        async def job(_: int) -> None:
            graph = free.get_nowait()
            await _run(graph, {"arguments": TOOL_ARGUMENTS, "left": TEN}, TEN)
            free.put_nowait(graph)

        await seconds_each(job, concurrency, concurrency)
        return TEN / await seconds_each(job, n, concurrency)


async def growing_conversation(url: str, steps: int = 1000, *, delta: bool = False) -> Growth:
    """One conversation that gains a message of 1 KB with every step. ``delta``: with its beta DeltaChannel instead."""
    raw = sum(len(model_response(left)) for left in range(1, steps + 1))
    observer = await asyncpg.connect(url)
    try:
        async with _savers(url, 1) as [saver]:
            kind = DeltaConversation if delta else Conversation
            graph = _loop(kind, _speak, saver)
            kept = await _kept(observer)
            start = await observer.fetchval("select pg_current_wal_lsn()")
            await _run(graph, {"messages": [], "left": steps}, steps)
            wal = await observer.fetchval("select pg_wal_lsn_diff(pg_current_wal_lsn(), $1)::bigint", start)
            await observer.execute("vacuum full")  # what is alive, as for us
            return Growth(wal, await _kept(observer) - kept, raw)
    finally:
        await observer.close()


async def _kept(observer: asyncpg.Connection) -> int:
    sizes = "select sum(pg_total_relation_size(name::regclass))::bigint from unnest($1::text[]) as name"
    return int(await observer.fetchval(sizes, list(TABLES)))
