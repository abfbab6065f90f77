"""The lean floor: six row writes per step in two commits, or four in one, under forced row-level security.

Fenced by epoch and write number, hash-chained, with a checkpoint of 4 KB in every write. The effect runs between the commits.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import time
from typing import Any
from uuid import UUID, uuid4

import asyncpg
import orjson

from benchmarks.peers.payloads import TOOL_ARGUMENTS, effect
from benchmarks.plane import HERE, KEY, plane

WARM_STEPS = 20
_LOG = [{"step": number, "text": "x" * 150} for number in range(20)]
_WRITE = "select lean_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)"


class Job:
    """One job, on a connection that is its own while it runs."""

    def __init__(self, connection: Any, org: UUID, id: UUID) -> None:
        self._connection, self._org, self._id = connection, org, id
        self._written = self._step = 0
        self._done: tuple[UUID, str] | None = None

    async def step(self, *, commits: int) -> None:
        self._step += 1
        call = uuid4()
        arguments = orjson.dumps(TOOL_ARGUMENTS, option=orjson.OPT_SORT_KEYS)
        await self._write("step_responded", self._done, (call, arguments))
        result = orjson.dumps(await effect(TOOL_ARGUMENTS)).decode()
        self._done = (call, result)
        if commits == 2:
            await self._write("step_completed", self._done, None)
            self._done = None

    async def _write(self, action: str, done: tuple[UUID, str] | None, call: tuple[UUID, bytes] | None) -> None:
        self._written += 1
        checkpoint = orjson.dumps({"step": self._step, "log": _LOG})
        mac = hmac.digest(KEY, checkpoint, "sha256")
        body = orjson.dumps({"action": action, "job": str(self._id), "step": self._step, "arguments": TOOL_ARGUMENTS})
        intent = (call[0], self._step, call[1].decode(), hashlib.sha256(call[1]).digest()) if call else (None,) * 4
        written = await self._connection.fetchval(
            _WRITE, self._org, self._id, 1, self._written, checkpoint.decode(), mac, *(done or (None, None)), *intent,
            action, body,
        )  # fmt: skip
        if written is None:
            raise RuntimeError("the job was lost")


async def lean_step(url: str, n: int, concurrency: int, commits: int) -> float:
    """Steps per second of ``concurrency`` jobs that share ``n`` steps."""
    async with plane(url) as made:
        admin = await asyncpg.connect(url)
        try:
            if await admin.fetchval("select to_regclass('lean_job') is null"):
                await admin.execute((HERE / "lean.sql").read_text())
            org, ids = uuid4(), [uuid4() for _ in range(concurrency)]
            await admin.execute("insert into lean_job (org_id, id) select $1, id from unnest($2::uuid[]) id", org, ids)
        finally:
            await admin.close()
        connections = [await asyncpg.connect(made.app_url) for _ in ids]
        try:
            jobs = [Job(connection, org, id) for connection, id in zip(connections, ids, strict=True)]
            await asyncio.gather(*(_run(job, WARM_STEPS, commits) for job in jobs))
            each = max(n // concurrency, 1)
            started = time.perf_counter()
            await asyncio.gather(*(_run(job, each, commits) for job in jobs))
            return each * concurrency / (time.perf_counter() - started)
        finally:
            for connection in connections:
                await connection.close()


async def _run(job: Job, steps: int, commits: int) -> None:
    for _ in range(steps):
        await job.step(commits=commits)
