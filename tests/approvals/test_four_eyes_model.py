"""Random people with several identities each never complete alone what the policies give to two.

`ship` needs two votes, `refund` the yes of somebody who shaped nothing of it. In each play four humans, one of them most of the
time, add and promote accounts, redeem codes in their own and in other people's place, make keys and webhooks, shape calls in
every way that there is, decide, hand on, go absent, give standing approvals, settle calls and change the rules (`four_eyes_plot.py` says
who does what next). Whatever was sent is checked against a record of who did what that the plane has no part in. Refused acts change
nothing in it.

What no test can tell apart is left out: an account that a human proved with a second mail address or chat account of theirs, and
one that two humans shared. So a human proves a channel only for the account that they have from the beginning, and only while nobody else
was ever in their place. A short form runs with every `make test`, the long one with `make soak`; a play that fails prints its acts, and
its seed plays it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from datetime import UTC, datetime

import pytest

from tests.approvals.four_eyes_play import Play
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.servers import TestServer
from tests.fixtures.warm_databases import WarmDatabases

PLAYS = int(os.environ.get("CORTEX_MODEL_EXAMPLES", "300"))
SHORT = (0, 2, 13)
"""Plays that reach every act between them."""
START = datetime(2026, 3, 16, 9, tzinfo=UTC)


async def play(server: TestServer, databases: WarmDatabases, seed: int, steps: int) -> list[str]:
    """What was done in it."""
    warm = await databases.take(server)
    db, admin = await warm.database(), await warm.admin()
    try:
        clock = await Clock.install(admin, START)
        stage = Play(await World.create(db, "acme", policies=None), admin, clock, seed)
        await stage.set_up()
        try:
            return await stage.run(steps)
        except Exception as error:
            error.add_note("\n".join([f"seed {seed}:", *stage.story]))
            raise
    finally:
        await db.hints.close()
        await databases.give_back(warm)


async def hold(server: TestServer, databases: WarmDatabases, seeds: Iterable[int], steps: int) -> None:
    for seed in seeds:
        story = await play(server, databases, seed, steps)
        assert not story[-1].startswith("BROKEN"), "\n".join([f"seed {seed}:", *story])


@pytest.mark.proves("D.630")
async def test_no_human_completes_alone_what_policy_gives_to_two(
    server: TestServer, warm_databases: WarmDatabases
) -> None:
    await hold(server, warm_databases, SHORT, 50)


@pytest.mark.soak
@pytest.mark.parametrize("part", range(10))
async def test_no_human_completes_alone_what_policy_gives_to_two_for_long(
    server: TestServer, warm_databases: WarmDatabases, part: int
) -> None:
    first = part * PLAYS
    await hold(server, warm_databases, range(first, first + PLAYS), 80)
