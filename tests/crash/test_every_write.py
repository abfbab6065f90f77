"""Every write of an attempt goes wrong in every way that a network and a database know."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from typing import Any
from uuid import UUID

import pytest

from cortex_plane.db.database import Database, Row
from cortex_plane.kernel.errors import Conflict, InvalidInput, Unavailable
from cortex_plane.worker.worker import JobRunner
from tests.crash.outcomes import require_clean
from tests.crash.points import naming
from tests.crash.stage import Stage
from tests.crash.tools import SHORT, Kind, renamed
from tests.crash.workers import DEADLINE
from tests.fixtures.workers import KEY


class Fault(StrEnum):
    NOT_SENT = "the connection was lost before the statement arrived"
    NOT_HEARD = "the connection was lost after the commit, before the answer arrived"
    IN_THE_WAY = "two transactions got in each other's way"
    REFUSED = "the database refused it"


class Faulty(Database):
    """The n-th call of one verb goes wrong, once."""

    def __init__(self, db: Database, name: str, number: int, fault: Fault) -> None:
        super().__init__(db._pool, credential_key=db.credential_key_at_hand)
        self._name, self._left, self._fault = name, itertools.count(1 - number), fault
        self.happened = False

    async def call(self, name: str, org: UUID | None, *args: Any) -> Sequence[Row]:
        # A claim that found nothing is no claim.
        due = name == self._name and name != "claim_jobs" and next(self._left) == 0
        if due and self._fault is not Fault.NOT_HEARD:
            self.happened = True
            raise _error(self._fault)
        rows = await super().call(name, org, *args)
        # Several of these share the driver's pool: none of them keeps a connection at hand.
        await self._shared.return_connections()
        if due or (name == self._name == "claim_jobs" and rows and next(self._left) == 0):
            self.happened = True
            raise _error(self._fault)
        return rows


def _error(fault: Fault) -> Exception:
    if fault is Fault.IN_THE_WAY:
        return Conflict("Two requests got in each other's way.", code="retry")
    if fault is Fault.REFUSED:
        return InvalidInput("A value is outside of what can be stored.")
    return Unavailable("The database cannot be reached.")


async def _ends_well(stage: Stage, kind: Kind, name: str, number: int, fault: Fault) -> bool:
    """False: the job was over before its n-th write."""
    run = await stage.submit(kind, f"{name}#{number}: {fault}", limits={"retry_base_seconds": 0.001})
    db = Faulty(stage.world.db, name, number, fault)
    worker = JobRunner(db, [renamed(stage.code, run.app)], KEY, replace(SHORT, adoption_seconds=2.0))
    task = asyncio.create_task(worker.run())
    try:
        await stage.finished(run.job_id)
    finally:
        worker.stop()
        await asyncio.wait_for(task, DEADLINE)
    return db.happened


@pytest.mark.parametrize("kind", [Kind.PROBED, pytest.param(Kind.ASKED, marks=pytest.mark.soak)])
@pytest.mark.proves("S1.10")
async def test_every_write_goes_wrong_once(lonely_stage: Stage, kind: Kind) -> None:
    """A person is asked what a probe would say, so that one kind tells; `make soak` runs both."""
    for fault in Fault:
        with naming(fault):
            happened = await asyncio.gather(
                *(_ends_well(lonely_stage, kind, "advance_job", number, fault) for number in range(1, 8))
            )
            assert all(happened), "a run makes seven writes"
    await require_clean(lonely_stage)


async def test_the_answer_to_a_claim_is_lost(lonely_stage: Stage) -> None:
    """The jobs are leased to a worker that lives and does not know: nobody else would take them."""
    assert await _ends_well(lonely_stage, Kind.WITH_KEY, "claim_jobs", 1, Fault.NOT_HEARD)
    await require_clean(lonely_stage)
