"""What the plane does for itself now and then. Any number of processes may do it at once: who comes second finds it done.

The first of them is due half a minute after a process has started. Until then it does without their modules.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from cortex_plane.db.database import Database
from cortex_plane.db.schema import EVENT_MONTHS_AHEAD

MINUTE, HOUR = 60.0, 3600.0


@dataclass(frozen=True, slots=True)
class Chore:
    name: str
    every_seconds: float
    do: Callable[[Database], Awaitable[None]]


async def _partitions(db: Database) -> None:
    """The event table has its months ahead, however long the plane runs."""
    await db.call("prepare_event_partitions", None, EVENT_MONTHS_AHEAD)


async def _chunks(db: Database) -> None:
    """Text that an attempt left behind when it died."""
    from cortex_plane.sessions.verbs import events

    await events.forget_chunks(db)


async def _callback_secrets(db: Database) -> None:
    from cortex_plane.approvals.verbs import credentials

    await credentials.keep(db)


async def _webhooks(db: Database) -> None:
    from cortex_plane.notify.verbs import webhooks

    await webhooks.keep(db)


async def _old_signals(db: Database) -> None:
    from cortex_plane.jobs.verbs import signals

    await signals.forget(db)


async def _untold_signals(db: Database) -> None:
    from cortex_plane.jobs.verbs import signals

    await signals.tell_the_rest(db)


async def _resolutions(db: Database) -> None:
    from cortex_plane.calls.verbs import resolutions

    await resolutions.forget_resolutions(db)


async def _atlas_minutes(db: Database) -> None:
    from cortex_plane.gates.verbs import atlas_cache

    await atlas_cache.forget_minutes(db)


async def _request_budgets(db: Database) -> None:
    from cortex_plane.tenancy.verbs import request_rates

    await request_rates.forget(db)


async def _roots(db: Database) -> None:
    from cortex_plane.proof.verbs import roots

    await roots.keep_roots(db)


async def _root_copies(db: Database) -> None:
    from cortex_plane.proof.verbs import roots

    await roots.copy_all_roots(db)


CHORES = (
    Chore("event partitions", HOUR, _partitions),
    Chore("forgotten chunks", HOUR, _chunks),
    Chore("callback secrets", HOUR, _callback_secrets),
    Chore("failing webhooks", HOUR, _webhooks),
    Chore("old signals", HOUR, _old_signals),
    Chore("old resolutions", HOUR, _resolutions),
    Chore("old minutes of atlases", HOUR, _atlas_minutes),
    Chore("full request budgets", HOUR, _request_budgets),
    Chore("untold signals", MINUTE, _untold_signals),
    Chore("signed roots", MINUTE, _roots),
    Chore("copies of signed roots", HOUR, _root_copies),
)
