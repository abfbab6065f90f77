"""`plane.guard` around a function, per call, against the function itself and two bare commits.

Whoever wants to know afterwards what a function was about to do and what came of it writes two rows: one before, one after. The
guard asks the API (a process of its own) twice instead: may it, with the intent, and then the outcome; each is one commit.
"""

from __future__ import annotations

import os
import statistics
import time
from functools import partial
from pathlib import Path
from uuid import UUID, uuid4

import asyncpg
import orjson

from benchmarks.goals import goal, table
from benchmarks.ingest import serve
from benchmarks.measuring import Work, compare
from benchmarks.peers.databases import fresh_database
from benchmarks.peers.payloads import TOOL_ARGUMENTS, TOOL_RESULT, effect
from benchmarks.plane import Plane, plane
from cortex_plane import Client
from cortex_plane.calls.model import Dialect
from cortex_plane.calls.routes import ANSWER_HOOK
from cortex_plane.tenancy.verbs import keys

CHECKPOINT_BYTES = 200
HERE = Path(__file__).parent


async def act(note: str) -> dict[str, object]:
    """What is guarded: nothing, so that only the guard is measured."""
    return await effect({"note": note})


async def _two_commits(made: Plane, pool: asyncpg.Pool, concurrency: int) -> Work:
    """The function between the rows of its intent and of its outcome, by a login without row-level security."""
    agent = await made.agent(f"floor-{uuid4().hex[:8]}", [{"text": "done"}])
    places: list[tuple[UUID, UUID, UUID]] = []
    for _ in range(concurrency):
        row = await pool.fetchrow(
            "update job set runnable_at = null where id = $1 returning org_id, session_id, id",
            await made.submit(agent.slug),
        )
        places.append(tuple(row))
    intent, outcome = ((HERE / f"floor_{name}.sql").read_text() for name in ("intent", "outcome"))
    arguments, result, checkpoint = (
        orjson.dumps(value).decode() for value in (TOOL_ARGUMENTS, TOOL_RESULT, {"filler": "x" * CHECKPOINT_BYTES})
    )
    response = orjson.dumps({"text": None, "calls": []}).decode()
    mac, digest, body = os.urandom(32), os.urandom(32), os.urandom(400)
    numbers: dict[UUID, int] = {}

    async def call(number: int) -> None:
        org, session, job = places[number % concurrency]
        index = numbers[job] = numbers.get(job, -1) + 1
        id = uuid4()
        await pool.execute(
            intent, org, session, job, checkpoint, mac, index, response, id, arguments, digest, body,
            2 * index + 100,
        )  # fmt: skip
        await act(TOOL_ARGUMENTS["note"])
        await pool.execute(outcome, org, session, job, checkpoint, mac, id, result, digest, body, 2 * index + 101)

    return call


async def _rivals(made: Plane, pool: asyncpg.Pool, client: Client, concurrency: int) -> dict[str, Work]:
    guards = []
    for _ in range(concurrency):  # each with a session of its own, as the bare ones have
        slug = f"guarded-{uuid4().hex[:8]}"
        await made.agent(slug, [])
        guards.append(client.guard("bench.act", agent=slug, on_uncertain="fail")(act))
    plain = partial(act, TOOL_ARGUMENTS["note"])
    return {
        "the function alone": lambda _: plain(),
        "and two bare commits": await _two_commits(made, pool, concurrency),
        "guarded": lambda number: guards[number % concurrency](TOOL_ARGUMENTS["note"]),
    }


async def run(admin_url: str, *, rounds: int = 5, count: int = 100) -> bool:
    met = True
    async with fresh_database(admin_url, "guards") as url, plane(url) as made:
        secret = str(await keys.issue_key_for_owner(made.db))
        pool = await asyncpg.create_pool(url, min_size=16, max_size=16)
        server, port = await serve(made.app_url)
        try:
            async with Client(f"http://127.0.0.1:{port}", secret) as client:
                for concurrency in (1, 16):
                    rivals = await _rivals(made, pool, client, concurrency)
                    medians = await compare(rivals, rounds=rounds, count=count, concurrency=concurrency, url=url)
                    met = _print(concurrency, medians) and met
                met = await _hooks(made, client, rounds * count) and met
        finally:
            server.terminate()
            await server.wait()
            await pool.close()
    return met


async def _hooks(made: Plane, client: Client, count: int) -> bool:
    """The hook of a coding agent before a tool that policies allow, and after it: one request each."""
    agent = await made.agent(f"coding-{uuid4().hex[:8]}", [])
    session, seconds = uuid4().hex, dict[str, list[float]](PreToolUse=[], PostToolUse=[])
    for number in range(count + 10):
        event = {
            "session_id": session,
            "tool_name": "Bash",
            "tool_input": TOOL_ARGUMENTS,
            "tool_use_id": f"toolu_{number}",
        }
        for name, taken in seconds.items():
            content = orjson.dumps(event | {"hook_event_name": name, "tool_response": TOOL_RESULT})
            began = time.perf_counter()
            answer = await client.transport.send_bytes(
                ANSWER_HOOK, Dialect.CLAUDE, content=content, query={"agent": agent.slug}, headers={}
            )
            taken.append(time.perf_counter() - began)
            if b"deny" in answer.content or b"systemMessage" in answer.content:
                raise RuntimeError(answer.text)
    medians = {name: statistics.median(taken[10:]) for name, taken in seconds.items()}
    title = "a hook of a coding agent, round trip"
    print(f"\n{title:44}{'ms':>10}")
    for name, median in medians.items():
        print(f"{'  ' + name:44}{median * 1e3:>10.2f}")
    table(title, "ms", {name: median * 1e3 for name, median in medians.items()})
    return goal("hook of a coding agent", "before a tool", medians["PreToolUse"] * 1e3, "≤", 10, " ms")


def _print(concurrency: int, medians: dict[str, float]) -> bool:
    title = f"a guarded call, {concurrency} at once"
    print(f"\n{title:44}{'µs each':>10}{'ratio':>10}")
    for name, seconds in medians.items():
        print(f"{'  ' + name:44}{seconds * 1e6:>10.0f}{seconds / medians['and two bare commits']:>9.2f}×")
    table(title, "µs each", {name: seconds * 1e6 for name, seconds in medians.items()})
    if concurrency == 1:
        return goal("guarded call", "alone", medians["guarded"] * 1e3, "≤", 4, " ms")
    return goal("guarded call", "16 at once, calls per second", 1 / medians["guarded"], "≥", 400, "/s")
