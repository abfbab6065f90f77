"""A notifier killed anywhere: nothing is lost, and only the message that was on its way may come twice."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from signal import SIGKILL

import asyncpg
import pytest

from tests.conftest import Urls
from tests.crash.workers import Workers
from tests.fixtures.clock import Clock
from tests.fixtures.notifications import copies
from tests.fixtures.people import World
from tests.fixtures.workers import whole
from tests.worker.test_notifier import approvers, asked_of


@pytest.mark.proves("D.124")
@pytest.mark.parametrize(
    "point",
    ["claim_notifications:after#1", "commit:before#2", "commit:after#2", "record_deliveries:before#2",
     "record_deliveries:after#2"],
)  # fmt: skip
async def test_killed_anywhere_nothing_is_lost_and_at_most_one_comes_twice(
    strict: World, urls: Urls, admin: asyncpg.Connection, workers: Workers, tmp_path: Path, point: str
) -> None:
    await approvers(strict, admin, "Ann")
    asked = await asked_of(strict)
    await copies(admin, asked, 1, 3)
    clock = await Clock.install(admin, asked.requested_at + timedelta(hours=1))
    file = tmp_path / "sent"
    file.touch()

    async def deliver(at: str | None = None) -> int:
        arguments = {"file": str(file)}
        process = await workers.start(urls.app, "none", verb="deliver", arguments=arguments, at=at, pool=4)
        return await process.wait()

    assert await deliver(at=point) == -SIGKILL
    killed_at = len(file.read_text().splitlines())
    assert await deliver() == 0
    if point != "record_deliveries:after#2":
        assert len(file.read_text().splitlines()) == killed_at, "the dead one has it for a minute"
    await clock.advance(timedelta(seconds=61))
    assert await deliver() == 0
    lines = [line.split(" ", 4)[4] for line in file.read_text().splitlines()]
    assert len(set(lines)) == 4
    assert len(lines) <= 5, "only what was on its way may come twice"
    once = list(dict.fromkeys(lines))
    assert once[1:] == ["number 1", "number 2", "number 3"]
    assert await admin.fetchval("select count(*) from notification where status = 'delivered'") == 4
    assert await whole(strict)
