"""One conversation of five hundred turns: what a turn costs at its beginning, in its middle and at its end.

A turn is a message of a person, the job that answers it, and its answer, from the message to the end of the job. The model is
scripted, so that only the plane is measured: reading the conversation, assembling the window, writing the turn.
"""

from __future__ import annotations

import asyncio
import statistics
import time

from benchmarks.peers.databases import fresh_database
from benchmarks.peers.payloads import words
from benchmarks.plane import plane, working
from benchmarks.steps import completions
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.access import KeyDraft
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections, frame, keys
from cortex_plane.worker.tools.app import App

TURNS = 500
PART = 50
SAID_BYTES = 400
AIM = 1.3
"""How much a turn of the last part may take of one of the first."""


async def turns(url: str, count: int) -> list[float]:
    """Seconds of each turn, in order."""
    async with plane(url) as made:
        await made.agent("talker", [{"text": words(SAID_BYTES, 1), "repeat": True}])
        connection = await connections.create_connection(
            made.db, made.actor, ConnectionDraft(channel_type="web", name="bench")
        )
        service = await keys.create_key(made.db, made.actor, KeyDraft(name="bridge", roles=[Role.MEMBER]))
        actor = await frame.authenticate_key(made.db, str(service.secret))
        taken: list[float] = []
        async with working(made, App("bench"), 1), completions(url) as waiting:
            for number in range(count + 3):
                said = InboundMessage(external_user_id="somebody", agent="talker", text=words(SAID_BYTES, 10 + number))
                started = time.perf_counter()
                delivery = await sessions.ingest_message(made.db, actor, connection.id, said)
                ended = waiting[delivery.job_id] = asyncio.Event()
                await ended.wait()
                taken.append(time.perf_counter() - started)
        return taken[3:]


async def run(admin_url: str, *, count: int = TURNS, part: int = PART) -> bool:
    async with fresh_database(admin_url, "conversation") as url:
        taken = await turns(url, count)
    middle = (len(taken) - part) // 2
    parts = {
        f"first {part}": taken[:part],
        f"middle {part}": taken[middle : middle + part],
        f"last {part}": taken[-part:],
    }
    print(f"\n{f'a conversation of {count} turns':36}{'ms/turn':>10}{'of first':>10}{'aim':>8}")
    first = statistics.median(parts[f"first {part}"])
    ratio = 0.0
    for name, known in parts.items():
        median = statistics.median(known)
        ratio = median / first
        aim = f"≤ {AIM}" if name.startswith("last") else ""
        missed = bool(aim) and ratio > AIM
        print(f"{'  ' + name:36}{median * 1e3:>10.2f}{ratio:>9.2f}×{aim:>8}{'  MISSED' if missed else ''}")
    return ratio <= AIM
