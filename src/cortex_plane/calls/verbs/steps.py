"""One commit of an attempt: what a step did, and the approvals that it requests."""

from __future__ import annotations

from dataclasses import replace
from uuid import UUID

from cortex_plane.approvals import store as approvals_store
from cortex_plane.approvals.model.approvals import ApprovalKind
from cortex_plane.approvals.verbs import approval_requests
from cortex_plane.approvals.verbs.approval_requests import RequestOutcome
from cortex_plane.db.database import Database
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.jobs import JobStatus, PauseSource
from cortex_plane.jobs.rules import Assignment, StepWrite, WriteResult
from cortex_plane.kernel.errors import AlreadyExists, Conflict
from cortex_plane.kernel.meters import meters
from cortex_plane.sessions.model.events import EventType


async def advance(
    db: Database, assignment: Assignment, worker_id: UUID, number: int, write: StepWrite, dispatch_seconds: float
) -> WriteResult | None:
    """One commit of an attempt; None where the job is not this worker's any more."""
    write_step = _ask if write.requests else jobs_store.advance_job
    written = await write_step(db, assignment, worker_id, number, write, dispatch_seconds)
    if write.hold is not None and written is not None and written.status is JobStatus.PAUSED:
        meters().paused(assignment.org_id, PauseSource.POLICY)
        meters().suspended(assignment.org_id, 0.0)
    if "waits" in write.more:
        db.hints.work()  # What it waits for may have come before.
    return written


async def _ask(
    db: Database, assignment: Assignment, worker_id: UUID, number: int, write: StepWrite, dispatch_seconds: float
) -> WriteResult | None:
    """A write that asks people: requests, job, checkpoint, events and audit in one transaction. The requests are made only
    under the attempt's own lock; without it the write says for itself what became of it."""
    actor = write.asked_by
    if actor is None:
        raise AssertionError("a write that asks says who does")
    facts, events = list(write.facts), list(write.events)
    approvals: set[UUID] = set()
    outcomes: list[RequestOutcome] = []
    try:
        async with db.transaction(assignment.org_id) as tx:
            attempt = await approvals_store.lock_attempt(
                tx, assignment.job_id, worker_id, assignment.epoch, number - 1, write.message_seq
            )
            if attempt is not None and not attempt["cancelled"]:
                # In one order, so that two jobs of a session that ask the same cannot wait for each other; whoever
                # decides locks in the same one.
                for request in sorted(write.requests, key=lambda r: (r.tool_name, r.input_hash)):
                    outcome = await approval_requests.request(tx, actor, assignment, attempt, request)
                    approvals |= {outcome.id} if request.kind is ApprovalKind.CALL else set()
                    facts += outcome.facts
                    events.append(outcome.event)
                    outcomes.append(outcome)
            if outcomes:
                # The first one that it waits for, which may be an earlier request that it joined.
                asked = {outcome.request.id: outcome.id for outcome in outcomes}[write.requests[0].id]
                events = [
                    (k, {**d, "correlation_id": str(asked)} if k == EventType.SESSION_PAUSED else d) for k, d in events
                ]
            write = replace(write, facts=facts, events=events)
            written = await jobs_store.advance_job(
                tx, assignment, worker_id, number, write, dispatch_seconds, len(approvals)
            )
    except AlreadyExists as error:
        # Somebody asked the same at the same moment: with the next try this one joins.
        raise Conflict("Another job asks the same.", code="retry") from error
    approval_requests.count(assignment.org_id, outcomes, is_held=write.hold is not None)
    return written
