"""A checkpoint write at several sizes, fenced, signed and numbered, against a bare UPDATE of the same column."""

from __future__ import annotations

import os
from datetime import timedelta

import asyncpg

from benchmarks.measuring import compare
from benchmarks.peers.databases import fresh_database
from benchmarks.peers.payloads import words
from benchmarks.plane import KEY, plane
from cortex_plane.calls.verbs import steps
from cortex_plane.db.database import NOBODY
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.checkpoints import Progress, seal
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.ids import new_id

SIZES = (2_000, 20_000, 100_000)
AIM = 1.15
_BARE = "update job set checkpoint = $2::text::jsonb, checkpoint_mac = $3, updated_at = clock_timestamp() where id = $1"


async def run(admin_url: str, *, rounds: int = 7, count: int = 100) -> bool:
    print(f"\n{'checkpoint write':36}{'µs':>10}{'ratio':>10}{'aim':>8}")
    met = True
    async with fresh_database(admin_url, "checkpoints") as url, plane(url) as made:
        agent = await made.agent("writer", [{"text": "done"}])
        for _ in range(2):
            await made.submit(agent.slug)
        worker = new_id()
        await jobs_store.register_worker(made.db, worker, "bench", "bench", 1, ["bench"], 1, timedelta(hours=1))
        (given,), _ = await jobs_store.claim_jobs(made.db, worker, ["bench"], 1, NOBODY)
        floor = await asyncpg.create_pool(url, min_size=1, max_size=1)
        other = await floor.fetchval("select id from job where id <> $1 limit 1", given.job_id)
        number = 0
        for size in SIZES:
            at = Progress(given.agent_id, "0" * 64, checkpoint_id=new_id(), created_at=given.now)
            at.working_data = {"notes": canonical(words(size - 900, size))}
            # The bare one writes what is ready; ours makes it ready, for a step changes where the job stands.
            ready = seal(at, job_id=other, key=KEY)
            mac = os.urandom(32)

            async def bare(_: int, ready: str = ready.text, mac: bytes = mac) -> None:
                await floor.execute(_BARE, other, ready, mac)

            async def ours(_: int, at: Progress = at) -> None:
                nonlocal number
                number += 1
                at.step = number
                sealed = seal(at, job_id=given.job_id, key=KEY)
                write = StepWrite(checkpoint=sealed.stored, memory=at.memory_json(), mac=sealed.mac)
                if await steps.advance(made.db, given, worker, number, write, 2.0) is None:
                    raise RuntimeError("the write was fenced off")

            medians = await compare({"bare": bare, "ours": ours}, rounds=rounds, count=count, concurrency=1, url=url)
            ratio = medians["ours"] / medians["bare"]
            missed = ratio > AIM
            met = met and not missed
            print(f"{f'  {size // 1000} KB, bare UPDATE':36}{medians['bare'] * 1e6:>10.0f}")
            told = f"{ratio:>9.2f}×{f'≤ {AIM}':>8}{'  MISSED' if missed else ''}"
            print(f"{f'  {size // 1000} KB, ours':36}{medians['ours'] * 1e6:>10.0f}{told}")
        await floor.close()
    return met
