"""Rows that the plane did not write as they stand: whoever comes with one is answered as if it did not exist, and it is reported."""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.meters import meters
from cortex_plane.proof.model.audit import Fact
from cortex_plane.proof.store import audit
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.rules.credential_keys import Forged

log = structlog.get_logger()

PAUSE_SECONDS = 3600
"""A row is on the trail at most so often, and by each process: whoever tries it again and again fills no chain."""
REMEMBERED = 10_000

_reported: OrderedDict[tuple[UUID, str, str], float] = OrderedDict()


@contextlib.asynccontextmanager
async def refused_as(db: Database, refusal: Callable[[], CortexError]) -> AsyncIterator[None]:
    """Reports a forged row that is met inside, and raises what is raised for one that does not exist.

    Open no transaction around it: what is reported is committed, and what was begun is not."""
    try:
        yield
    except Forged as forged:
        await report(db, forged)
        raise refusal() from None


async def report(db: Database, forged: Forged) -> None:
    """In the log, in a metric and on the org's trail."""
    meters().forged(forged.kind)
    told = {"kind": forged.kind.value, "id": str(forged.id)}
    log.error("a row has a false MAC and was refused", org_id=str(forged.org_id), **told)
    if not _is_due((forged.org_id, forged.kind.value, str(forged.id))):
        return
    plane = scheduler_actor(forged.org_id, UUID(int=0), "plane")
    async with db.transaction(forged.org_id) as tx:
        await audit.append_to_org(tx, Fact.of(plane, "credential_refused", **told))


def _is_due(row: tuple[UUID, str, str]) -> bool:
    now = time.monotonic()
    before = _reported.get(row)
    if before is not None and now - before < PAUSE_SECONDS:
        return False
    _reported[row] = now
    _reported.move_to_end(row)
    if len(_reported) > REMEMBERED:
        _reported.popitem(last=False)
    return True
