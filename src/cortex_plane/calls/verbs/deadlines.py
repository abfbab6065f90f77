"""What happens when time passes: approvals, idle conversations, and calls whose outcome nobody reported."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from cortex_plane.approvals.verbs import decisions
from cortex_plane.calls.verbs import doubts
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_lifecycle
from cortex_plane.jobs.model.jobs import PauseSource
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.kernel.meters import meters
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import SessionStatus
from cortex_plane.tenancy.model.access import Actor, scheduler_actor

log = structlog.get_logger()

AT_ONCE = 200


@dataclass(slots=True)
class Tick:
    done: list[str] = field(default_factory=list)
    full: bool = False
    """There may be more that is due already, and something could be done about it."""


async def tick(db: Database, id: UUID, name: str) -> Tick:
    """Act on everything that is due, the oldest deadline first."""
    due = await db.call("find_due_approvals", None, AT_ONCE)
    idle = await db.call("find_idle_sessions", None, AT_ONCE)
    silent = await db.call("find_due_calls", None, AT_ONCE)
    result = Tick()
    for rows, act in ((due, _approval), (idle, _idle_session), (silent, doubts.settle_due)):
        for row in rows:
            await _each(result, functools.partial(act, db, scheduler_actor(row["org_id"], id, name), row["id"]))
    result.full = AT_ONCE in (len(due), len(idle), len(silent)) and bool(result.done)
    return result


async def _each(result: Tick, act: Callable[[], Awaitable[str | None]]) -> None:
    """One that fails must not keep the others from their time."""
    try:
        outcome = await act()
    except Unavailable:
        raise
    except CortexError as error:
        log.warning("deadline not kept yet", error=str(error))
        return
    except Exception:
        # A defect of ours, or a row that nobody foresaw: loud, and no harm to what is due after it.
        log.exception("deadline not kept")
        return
    if outcome is not None:
        result.done.append(outcome)


async def _approval(db: Database, actor: Actor, id: UUID) -> str | None:
    action = await decisions.act_when_due(db, actor, id)
    return action.what if action else None


async def _idle_session(db: Database, actor: Actor, id: UUID) -> str | None:
    """A conversation in which nobody says anything is paused; the next message makes it active again. What its agent ended ends."""
    if await session_lifecycle.end_by_agent(db, actor, id) is not None:
        return "ended"
    async with db.transaction(actor.org_id) as tx:
        row = await sessions_store.lock_session(tx, id, None)
        if row is None or row["end_reason"] is not None:
            return None
        went_at = await sessions_store.went_idle(tx, id)
        if went_at is None:
            return None
        await sessions_store.set_session_status(tx, id, SessionStatus.PAUSED)
        await proof_store.append_to_session(
            tx, id, [Fact.of(actor, "session_paused", reason="idle")],
            [("session_paused", None, {"reason": "idle", "pause_source": "idle", "paused_at": went_at.isoformat()})],
        )  # fmt: skip
    meters().paused(actor.org_id, PauseSource.IDLE)
    return "idle"


async def seconds_to_next(db: Database) -> float | None:
    rows = await db.call("next_deadline", None)
    seconds: float | None = rows[0]["next_deadline"]
    return seconds
