"""The peers among themselves, lightly: to see that they run. The comparison with us is ``python -m benchmarks``."""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from pathlib import Path

from benchmarks.peers.databases import fresh_database
from benchmarks.peers.rounds import interleaved, peer_columns
from cortex_plane.embedded import EmbeddedPostgres, Server


async def _steps(server: Server, rounds: int) -> None:
    for workload, count in (("side_effecting_step", 320), ("ten_step_jobs", 32)):
        for concurrency in (1, 16):
            columns = peer_columns(workload, count if concurrency == 1 else 3 * count, concurrency)
            medians = await interleaved(server.url(), columns, rounds=rounds)
            told = "".join(f"{name:>12} {rate:6.0f}/s" for name, rate in medians.items())
            print(f"{f'{workload}, {concurrency} at once':32}{told}", flush=True)


async def _queue(server: Server) -> None:
    from benchmarks.peers.pgqueuer_claims import claims, submit_to_start

    async with fresh_database(server.url(), "pgqueuer") as url:
        print(f"{'pgqueuer claims':32}{await claims(url, 10_000):>18.0f}/s")
        waits = await submit_to_start(url, 50)
        print(f"{'pgqueuer submit to start':32}{statistics.median(waits) * 1e3:>17.1f} ms")


async def _growth(server: Server, steps: int) -> None:
    from benchmarks.peers.langgraph_steps import growing_conversation

    for delta in (False, True):
        async with fresh_database(server.url(), "growth") as url:
            grown = await growing_conversation(url, steps, delta=delta)
        label = f"LangGraph{' DeltaChannel' if delta else ''}, {steps} KB said"
        wal, kept = grown.wal_bytes / grown.raw_bytes, grown.kept_bytes / grown.raw_bytes
        print(f"{label:40} log {wal:6.1f}× raw, kept {kept:6.1f}× raw", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--messages", type=int, default=200)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cortex-peers-") as folder:
        home = Path(folder)
        home.chmod(0o711)
        with EmbeddedPostgres(home) as server:
            asyncio.run(_steps(server, asked.rounds))
            asyncio.run(_queue(server))
            asyncio.run(_growth(server, asked.messages))


if __name__ == "__main__":
    main()
