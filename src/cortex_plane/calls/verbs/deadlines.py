"""What the scheduler does at deadlines: of approvals, idle conversations, and calls of which nobody knows whether they happened."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.verbs import decisions, settlements
from cortex_plane.calls.verbs.external import lock_call
from cortex_plane.calls.verbs.outcomes import SILENT, doubt_context, settle_doubt
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_gates, session_lifecycle
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import Answer, CallStatus
from cortex_plane.jobs.model.jobs import JobKind, SteeringResult
from cortex_plane.kernel.errors import CortexError, Unavailable
from cortex_plane.tenancy.model.access import Actor, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.frame import require_found, verb

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
    for rows, act in ((due, _approval), (idle, session_lifecycle.end_or_pause), (silent, settle_due)):
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


async def seconds_to_next(db: Database) -> float | None:
    rows = await db.call("next_deadline", None)
    seconds: float | None = rows[0]["next_deadline"]
    return seconds


async def settle_due(db: Database, actor: Actor, id: UUID) -> str | None:
    """For schedulers: an intent whose time is over; None where somebody else was faster."""
    seen, context = await doubt_context(db, actor, id)

    async def once(unread: CortexError | None) -> str | None:
        async with db.transaction(actor.org_id) as tx:
            call, job = await lock_call(tx, actor, seen)
            if call.status is not CallStatus.INTENDED or call.settle_after is None or call.now < call.settle_after:
                return None
            await settle_doubt(tx, actor, context, call, job, SILENT, unread)
        return "doubted"

    return await session_gates.with_gate_record(db, actor.org_id, once)


@verb(Permission.JOB_SETTLE)
async def answer_doubt(db: Database, actor: Actor, job_id: UUID, call_id: UUID, answer: Answer) -> SteeringResult:
    """A person's answer about an uncertain call. Where its agent was to find out, and people had let it be sent, those people are
    asked first: nobody else answers, and answers are counted on the card."""
    async with db.transaction(actor.org_id) as tx:
        job = require_found(await jobs_store.get_job(tx, job_id, actor.sees), "job")
        is_unasked = job.kind is JobKind.EXTERNAL and await approvals_store.is_unasked(tx, job_id, call_id)
    if is_unasked:
        await ask_human(db, actor, call_id)
    return await settlements.settle(db, actor, job_id, call_id, answer)


async def ask_human(db: Database, actor: Actor, id: UUID) -> bool:
    """Returns False: it did not begin. It may not be sent again, and nobody knows whether it happened."""
    seen, context = await doubt_context(db, actor, id)

    async def once(unread: CortexError | None) -> None:
        async with db.transaction(actor.org_id) as tx:
            call, job = await lock_call(tx, actor, seen)
            if call.status in (CallStatus.INTENDED, CallStatus.UNCERTAIN) and not call.is_asked:
                await settle_doubt(tx, actor, context, call, job, call.error or SILENT, unread, human=True)

    await session_gates.with_gate_record(db, actor.org_id, once)
    return False
