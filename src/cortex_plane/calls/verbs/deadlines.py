"""Deadlines: what the clock does to approvals and sessions. Any number of schedulers may look at once.

Each action is a transaction of its own, under the lock of what it acts on, and looks again whether it is still due: who
comes second finds nothing to do.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from uuid import UUID

import structlog

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.approvals.rules import deciders
from cortex_plane.approvals.rules.deciders import LockedApproval
from cortex_plane.approvals.store import approvals
from cortex_plane.approvals.verbs.decisions import hop_fact, retry_on_conflict, write_end
from cortex_plane.calls import store as calls_store
from cortex_plane.calls.verbs import doubts
from cortex_plane.db.database import Database, Transaction
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
    """What one look at the clock did."""

    done: list[str] = field(default_factory=list)
    full: bool = False
    """There may be more that is due already, and something could be done about it."""


async def tick(db: Database, id: UUID, name: str) -> Tick:
    """Act on everything that is due, the oldest deadline first."""
    looked = Tick()
    due = await approvals.due(db, AT_ONCE)
    idle = await sessions_store.idle_session(db, AT_ONCE)
    silent = await calls_store.due_calls(db, AT_ONCE)
    for org_id, approval_id, _ in due:
        actor = scheduler_actor(org_id, id, name)
        await _each(looked, functools.partial(_approval, db, actor, approval_id))
    for org_id, session_id, _ in idle:
        actor = scheduler_actor(org_id, id, name)
        await _each(looked, functools.partial(_idle_session, db, actor, session_id))
    for org_id, call_id, _ in silent:
        actor = scheduler_actor(org_id, id, name)
        await _each(looked, functools.partial(doubts.settle_due, db, actor, call_id))
    looked.full = AT_ONCE in (len(due), len(idle), len(silent)) and bool(looked.done)
    return looked


async def _each(looked: Tick, act: Callable[[], Awaitable[str | None]]) -> None:
    """One that fails must not keep the others from their time."""
    try:
        done = await act()
    except Unavailable:
        raise
    except CortexError as error:
        log.warning("deadline not kept yet", error=str(error))
        return
    except Exception:
        # A defect of ours, or a row that nobody foresaw: loud, and no harm to what is due after it.
        log.exception("deadline not kept")
        return
    if done is not None:
        looked.done.append(done)


@dataclass(frozen=True, slots=True)
class Acted:
    """What a scheduler did to an approval."""

    what: str
    template: str
    level: int


async def _approval(db: Database, actor: Actor, id: UUID) -> str | None:
    acted = await act_when_due(db, actor, id)
    return acted.what if acted else None


async def act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    """Remind, escalate or expire, whichever is due; None where somebody else was faster."""
    acted = await retry_on_conflict(lambda: _act_when_due(db, actor, id))
    if acted is not None and acted.what == "expired":
        db.hints.work()
        meters().expired(actor.org_id, acted.template)
    if acted is not None and acted.what == "escalated":
        meters().escalated(actor.org_id, acted.template, acted.level)
    return acted


async def _act_when_due(db: Database, actor: Actor, id: UUID) -> Acted | None:
    async with db.transaction(actor.org_id) as tx:
        if not await approvals.take(tx, id):
            return None
        opened = await approvals.open_one(tx, id)
        if opened is None or opened.approval.status is not ApprovalStatus.PENDING:
            return None
        request, level = opened.approval, opened.approval.escalation_level
        if request.deadline is not None and request.deadline <= opened.now:
            await _expire(tx, opened, actor)
            return Acted("expired", request.template, level)
        if level < len(request.escalate_at) and request.escalate_at[level] <= opened.now:
            return Acted("escalated", request.template, await _escalate(tx, opened, actor))
        if request.remind_at is None or request.remind_at > opened.now or not await approvals.remind(tx, id):
            return None
        await _reminded(tx, opened, actor)
        return Acted("reminded", request.template, level)


async def _reminded(tx: Transaction, opened: LockedApproval, actor: Actor) -> None:
    """Whoever became somebody who may decide, or can be reached, since the request was made hears of it now."""
    request = opened.approval
    hops = await approvals.reach(tx, request.id)
    facts = [
        Fact.of(actor, "approval_reminded", approval=str(request.id)),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    told = {"approval_id": str(request.id)}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_reminded", request.job_id, told)], job=request.job_id
    )


async def _expire(tx: Transaction, opened: LockedApproval, actor: Actor) -> None:
    request = opened.approval
    closing = deciders.expired(opened)
    deadline = request.deadline.isoformat() if request.deadline else None
    told = {"approval": str(request.id), "tool": request.tool_name, "deadline": deadline}
    await write_end(
        tx, opened, closing, actor, [{"approval": str(request.id), "type": "expired"}],
        Fact.of(actor, "approval_expired", **told),
        ("approval_expired", request.job_id, {"approval_id": str(request.id)}), version=request.version,
    )  # fmt: skip


async def _escalate(tx: Transaction, opened: LockedApproval, actor: Actor) -> int:
    """One level up: more people may decide. The deadline stays."""
    request = opened.approval
    added = request.escalations[request.escalation_level]
    level = await approvals.escalate(tx, request.id, deciders.joined(request.approvers, added))
    hops = await approvals.reach(tx, request.id)
    facts = [
        Fact.of(
            actor,
            "approval_escalated",
            approval=str(request.id),
            level=level,
            to=deciders.describe_approvers(added),
        ),
        *(hop_fact(actor, request.id, hop) for hop in hops),
    ]
    told = {"approval_id": str(request.id), "level": level}
    await proof_store.append_to_session(
        tx, request.session_id, facts, [("approval_escalated", request.job_id, told)], job=request.job_id
    )
    return level


async def _idle_session(db: Database, actor: Actor, id: UUID) -> str | None:
    """A conversation in which nobody says anything is paused; the next message makes it active again."""
    async with db.transaction(actor.org_id) as tx:
        locked = await sessions_store.lock_session(tx, id, None)
        if locked is None or not await sessions_store.went_idle(tx, id):
            return None
        await sessions_store.set_session_status(tx, id, SessionStatus.PAUSED)
        await proof_store.append_to_session(
            tx, id, [Fact.of(actor, "session_paused", reason="idle")],
            [("session_paused", None, {"reason": "idle", "pause_source": "idle"})],
        )  # fmt: skip
    return "idle"


async def seconds_to_next(db: Database) -> float | None:
    """Until the next deadline; None where there is none."""
    rows = await db.call("next_deadline", None)
    seconds: float | None = rows[0]["next_deadline"]
    return seconds
