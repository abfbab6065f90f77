"""Calls of which nobody knows whether they happened: their time is over, or people are asked."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.verbs import settlements
from cortex_plane.calls.verbs.outcomes import SILENT, doubt_context, lock_call, settle_doubt
from cortex_plane.db.database import Database
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import Answer, CallStatus
from cortex_plane.jobs.model.jobs import JobKind, SteeringResult
from cortex_plane.kernel.errors import CortexError
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb


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
