"""Two thousand open streams while jobs run: how long an event takes from its commit to a client.

The API, the clients and the worker are three processes. Each stream is a plain socket that follows a job of its own, and four orgs
share them, since a caller may have 500. An event's time is the database's, which is the clock of this machine too.

    python -m benchmarks.streams PORT    # the clients: keys and jobs on standard input, what was heard on standard output
"""

from __future__ import annotations

import asyncio
import os
import resource
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from uuid import UUID

import orjson

from benchmarks.ingest import serve
from benchmarks.plane import EVERYTHING_GOES, Plane, plane, working
from cortex_plane.policies.model.versions import PolicyFile
from cortex_plane.policies.verbs import policies
from cortex_plane.tenancy.model.orgs import OrgDraft
from cortex_plane.tenancy.verbs import frame, orgs
from cortex_plane.worker.tools.app import App

STREAMS, ORGS = 2000, 4
STEPS, JOBS_AT_ONCE = 20, 8
SECONDS = 10.0
AIM_P95 = 0.050
OPENING_AT_ONCE, SUBMITTED_AT_ONCE = 32, 16


# The clients -----------------------------------------------------------------------------------------------------


@dataclass
class Heard:
    seconds: list[float] = field(default_factory=list)
    lost: int = 0
    """Streams that ended although nobody ended them."""


async def _open(port: int, secret: str, job: str, room: asyncio.Semaphore) -> tuple[asyncio.StreamReader, object]:
    async with room:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        request = (
            f"GET /v1/jobs/{job}/events HTTP/1.1\r\nhost: plane\r\nauthorization: Bearer {secret}\r\n"
            "accept: text/event-stream\r\n\r\n"
        )
        writer.write(request.encode())
        head = await reader.readuntil(b"\r\n\r\n")
        if b" 200 " not in head.split(b"\r\n", 1)[0]:
            raise RuntimeError(head.decode())
        return reader, writer


async def _listen(reader: asyncio.StreamReader, heard: Heard) -> None:
    while line := await reader.readline():
        if line.startswith(b"event: end"):
            return
        if line.startswith(b'data: {"seq"'):
            now = time.time()
            created = datetime.fromisoformat(orjson.loads(line[6:])["created_at"])
            heard.seconds.append(now - created.timestamp())
    heard.lost += 1


async def _listen_to_all(port: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 8192)), hard))
    jobs: list[tuple[str, str]] = orjson.loads(sys.stdin.buffer.readline())
    heard, room = Heard(), asyncio.Semaphore(OPENING_AT_ONCE)
    opened = await asyncio.gather(*(_open(port, secret, job, room) for secret, job in jobs))
    listeners = [asyncio.create_task(_listen(reader, heard)) for reader, _ in opened]
    await asyncio.sleep(1)
    heard.seconds.clear()  # what was replayed is older than the streams
    print(len(opened), flush=True)
    await asyncio.to_thread(sys.stdin.buffer.readline)
    sys.stdout.buffer.write(orjson.dumps({"seconds": heard.seconds, "lost": heard.lost}) + b"\n")
    sys.stdout.flush()
    for listener in listeners:
        listener.cancel()


# The plane -------------------------------------------------------------------------------------------------------


def reading_app() -> App:
    app = App("streams")

    @app.tool(read_only=True)
    async def look(at: int) -> str:
        """Looks."""
        return f"saw {at}"

    return app


async def _prepare_orgs(made: Plane, streams: int) -> list[tuple[str, UUID]]:
    """The key and the job of each stream."""
    script = [{"calls": [{"tool": "look", "arguments": {"at": n}}], "delay_ms": 50} for n in range(STEPS)]
    jobs: list[tuple[str, UUID]] = []
    for number in range(ORGS):
        new = await orgs.bootstrap_plane(made.db, OrgDraft(slug=f"streams-{number}", name="Streams"))
        secret = str(new.key.secret)
        there = replace(made, actor=await frame.authenticate_key(made.db, secret))
        await policies.apply_policies(there.db, there.actor, PolicyFile(text=EVERYTHING_GOES))
        await there.agent("streams", [*script, {"text": "done"}], app="streams")
        for first in range(number, streams, ORGS * SUBMITTED_AT_ONCE):
            last = min(streams, first + ORGS * SUBMITTED_AT_ONCE)
            new_jobs = await asyncio.gather(*(there.submit("streams") for _ in range(first, last, ORGS)))
            jobs += [(secret, job) for job in new_jobs]
    return jobs


def _memory(pid: int) -> float:
    """In MB, of a process."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def _processor(pid: int) -> float:
    """Seconds that a process has worked."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def _measure(
    made: Plane, server: asyncio.subprocess.Process, port: int, streams: int
) -> tuple[Heard, float, float]:
    """What was heard; of the API the kilobytes of a stream, and the share of a core while jobs ran."""
    jobs = await _prepare_orgs(made, streams)
    before = _memory(server.pid)
    pipe = asyncio.subprocess.PIPE
    clients = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "benchmarks.streams", str(port), stdin=pipe, stdout=pipe, limit=2**26
    )
    try:
        assert clients.stdin is not None
        assert clients.stdout is not None
        clients.stdin.write(orjson.dumps([(secret, str(job)) for secret, job in jobs]) + b"\n")
        opened = await asyncio.wait_for(clients.stdout.readline(), 120)
        if int(opened or 0) != streams:
            raise RuntimeError(f"{opened.decode()} streams of {streams} were opened")
        size = (_memory(server.pid) - before) * 1000 / streams
        worked, started = _processor(server.pid), time.perf_counter()
        async with working(made, reading_app(), concurrency=JOBS_AT_ONCE):
            await asyncio.sleep(SECONDS)
            share = (_processor(server.pid) - worked) / (time.perf_counter() - started)
            clients.stdin.write(b"\n")
            known = orjson.loads(await asyncio.wait_for(clients.stdout.readline(), 60))
        return Heard(**known), size, share
    finally:
        if clients.returncode is None:
            clients.terminate()
        await clients.wait()


def _shown(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49], cuts[94]


async def run(url: str, *, streams: int = STREAMS) -> bool:
    """Print the line; whether the aim was met."""
    async with plane(url) as made:
        server, port = await serve(made.app_url)
        try:
            heard, size, share = await _measure(made, server, port, streams)
        finally:
            server.terminate()
            await server.wait()
    p50, p95 = _shown(heard.seconds)
    met = p95 <= AIM_P95 and not heard.lost
    print(f"\n{'event to client':34}{'events':>10}{'p50 ms':>10}{'p95 ms':>10}{'aim':>8}")
    mark = f"  {heard.lost} LOST" if heard.lost else "" if met else "  MISSED"
    label = f"{streams} open streams while jobs run"
    print(f"{label:34}{len(heard.seconds):>10}{p50 * 1e3:>10.0f}{p95 * 1e3:>10.0f}{f'≤ {AIM_P95 * 1e3:.0f}':>8}{mark}")
    print(f"{'  of the API':34}{size:>7.0f} kB each stream, {share:.0%} of a core")
    return met


if __name__ == "__main__":
    asyncio.run(_listen_to_all(int(sys.argv[1])))
