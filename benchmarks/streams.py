"""Two hundred open streams while jobs run: how long an event takes from its commit to a client.

The API is a process of its own, the jobs run in this one, and each stream is a plain socket, so that the clients cost
little. An event's time is the database's, which is the clock of this machine too.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from uuid import UUID

import orjson

from benchmarks.ingest import serve
from benchmarks.plane import Plane, plane, working
from cortex_plane.tenancy.verbs import keys
from cortex_plane.worker.tools.app import App

STREAMS = 200
STEPS = 5
AIM_P95 = 0.200


@dataclass
class Heard:
    seconds: list[float] = field(default_factory=list)
    ended: int = 0


def reading_app() -> App:
    app = App("streams")

    @app.tool(read_only=True)
    async def look(at: int) -> str:
        """Looks."""
        return f"saw {at}"

    return app


async def _listen(port: int, secret: str, job: UUID, heard: Heard, open_now: asyncio.Semaphore) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    request = (
        f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: plane\r\nauthorization: Bearer {secret}\r\n"
        "accept: text/event-stream\r\n\r\n"
    )
    writer.write(request.encode())
    await reader.readuntil(b"\r\n\r\n")
    open_now.release()
    try:
        while True:
            line = await reader.readline()
            if line.startswith(b"event: end") or not line:
                heard.ended += 1
                return
            if line.startswith(b'data: {"seq"'):
                now = time.time()
                created = datetime.fromisoformat(orjson.loads(line[6:])["created_at"])
                heard.seconds.append(now - created.timestamp())
    finally:
        writer.close()


async def _measure(made: Plane, port: int, secret: str, streams: int) -> Heard:
    script = [{"calls": [{"tool": "look", "arguments": {"at": n}}], "delay_ms": 100} for n in range(STEPS)]
    await made.agent("streams", [*script, {"text": "done"}], app="streams")
    jobs = [await made.submit("streams") for _ in range(streams)]
    heard, open_now = Heard(), asyncio.Semaphore(0)
    listeners = [asyncio.create_task(_listen(port, secret, job, heard, open_now)) for job in jobs]
    for _ in jobs:
        await open_now.acquire()
    heard.seconds.clear()  # what was replayed is older than the streams
    async with working(made, reading_app(), concurrency=32):
        await asyncio.wait_for(asyncio.gather(*listeners), 120)
    return heard


def _shown(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49], cuts[94]


async def run(url: str, *, streams: int = STREAMS) -> bool:
    """Print the line; whether the aim was met."""
    async with plane(url) as made:
        secret = str(await keys.issue_key_for_owner(made.db))
        server, port = await serve(made.app_url)
        try:
            heard = await _measure(made, port, secret, streams)
        finally:
            server.terminate()
            await server.wait()
    p50, p95 = _shown(heard.seconds)
    met = p95 < AIM_P95 and heard.ended == streams
    print(f"\n{'event to client':34}{'events':>10}{'p50 ms':>10}{'p95 ms':>10}{'aim':>8}")
    mark = "" if met else "  MISSED"
    label = f"{streams} open streams while jobs run"
    print(f"{label:34}{len(heard.seconds):>10}{p50 * 1e3:>10.0f}{p95 * 1e3:>10.0f}{AIM_P95 * 1e3:>8.0f}{mark}")
    return met
