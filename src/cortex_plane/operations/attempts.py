"""What a worker does with the jobs it leases. These verbs are the plane's own: no person or program calls them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from cortex_plane.domain.access import worker_actor
from cortex_plane.domain.approvals import ApprovalKind, NewRequest
from cortex_plane.domain.attempts import Assignment, Leased, Orphan, Write, Written, adoption
from cortex_plane.domain.audit import Fact
from cortex_plane.domain.conversations import Said, StepRow
from cortex_plane.domain.effects import ToolCall
from cortex_plane.domain.errors import AlreadyExists, Conflict
from cortex_plane.domain.jobs import JobKind
from cortex_plane.domain.policies import Approvers, Terms
from cortex_plane.domain.quorums import is_met
from cortex_plane.domain.receipts import Stamp
from cortex_plane.operations.decisions import hop_fact
from cortex_plane.operations.meters import meters
from cortex_plane.operations.verbs import found
from cortex_plane.storage import approvals, attempts, steps
from cortex_plane.storage.database import Database, Row, Transaction

ORPHANS_AT_ONCE = 100


async def claim(
    db: Database, worker_id: UUID, apps: Sequence[str], wanted: int, after: UUID
) -> tuple[list[Assignment], bool]:
    return await attempts.claim_jobs(db, worker_id, apps, wanted, after)


async def advance(
    db: Database, given: Assignment, worker_id: UUID, number: int, write: Write, dispatch_seconds: float
) -> Written | None:
    """One commit of an attempt; None where the job is not this worker's any more."""
    if write.requests:
        return await _ask(db, given, worker_id, number, write, dispatch_seconds)
    return await attempts.advance_job(
        db, given.org_id, given.job_id, worker_id, given.epoch, number, write, dispatch_seconds
    )


async def _ask(
    db: Database, given: Assignment, worker_id: UUID, number: int, write: Write, dispatch_seconds: float
) -> Written | None:
    """A write that asks people: requests, job, checkpoint, events and audit in one transaction.

    The requests are made only under the attempt's own lock; without it the write says for itself what became of it.
    """
    facts, events = list(write.facts), list(write.events)
    asked: set[UUID] = set()
    told: list[tuple[NewRequest, bool]] = []
    try:
        async with db.transaction(given.org_id) as tx:
            attempt = await approvals.lock_attempt(
                tx, given.job_id, worker_id, given.epoch, number - 1, write.message_seq
            )
            if attempt is not None and not attempt["cancelled"]:
                # In one order, so that two jobs of a session that ask the same cannot wait for each other; whoever
                # decides locks in the same one.
                for request in sorted(write.requests, key=lambda r: (r.tool_name, r.input_hash)):
                    id, joined = await _request(tx, given, attempt, request)
                    asked |= {id} if request.kind is ApprovalKind.CALL else set()
                    facts += _facts(write, request, id, joined)
                    if not joined:
                        facts += await _reached(tx, write, id)
                    events.append(_event(request, id, joined))
                    told.append((request, joined))
            written = await attempts.advance_job(
                tx, given.org_id, given.job_id, worker_id, given.epoch, number,
                replace(write, facts=facts, events=events), dispatch_seconds, len(asked),
            )  # fmt: skip
    except AlreadyExists as error:
        # Somebody asked the same at the same moment: with the next try this one joins.
        raise Conflict("Another job asks the same.", code="retry") from error
    _count(given.org_id, told)
    return written


def _count(org_id: UUID, told: Sequence[tuple[NewRequest, bool]]) -> None:
    for request, joined in told:
        if joined:
            meters().joined(org_id)
        else:
            meters().requested(org_id, request.terms.template)
    if told:
        meters().paused(org_id, "approval")
        meters().suspended(org_id, 0.0)


async def _request(
    tx: Transaction, given: Assignment, attempt: Row, request: NewRequest
) -> tuple[UUID, bool]:
    """The id of the request that this call belongs to now, and whether it was there before."""
    if request.kind is ApprovalKind.CALL:
        earlier = await approvals.joinable(tx, attempt["session_id"], attempt["causes"], request)
        if earlier is not None:
            await approvals.join(tx, earlier, request, given.job_id)
            return earlier, True
    await approvals.insert(tx, request, given.job_id, given.agent_id, attempt)
    return request.id, False


async def _reached(tx: Transaction, write: Write, id: UUID) -> list[Fact]:
    """Everybody who may decide it is told, on their channels; whoever is out of office hands their part on."""
    if write.asked_by is None:
        raise AssertionError("a write that asks says who does")
    return [hop_fact(write.asked_by, id, hop) for hop in await approvals.reach(tx, id)]


def _facts(write: Write, request: NewRequest, id: UUID, joined: bool) -> list[Fact]:
    if write.asked_by is None:
        raise AssertionError("a write that asks says who does")
    terms = request.terms
    action = "approval_joined" if joined else "approval_requested"
    asked = Fact.of(
        write.asked_by, action, approval=str(id), kind=request.kind, call=str(request.call_id),
        tool=request.tool_name, digest=request.tool_digest, input_hash=request.input_hash, rule=request.rule,
        policies=request.policy_version, template=terms.template, clearance=terms.required_clearance,
        timeout_seconds=terms.timeout_seconds,
    )  # fmt: skip
    dispatched = Fact.of(write.asked_by, "approval_dispatched", approval=str(id), channel="dashboard")
    return [asked] if joined else [asked, dispatched]


def _event(request: NewRequest, id: UUID, joined: bool) -> tuple[str, dict[str, Any]]:
    told = {"approval_id": str(id), "call": str(request.call_id), "tool": request.tool_name}
    return "approval_requested", {**told, "kind": request.kind, "joined": joined}


async def possible(db: Database, given: Assignment, terms: Terms, read_to: int) -> Terms | None:
    """The terms as far as people can fulfil them; None where nobody or too few could: better said now than when their time
    is over. Whom a request names must be one of those who may decide."""
    async with db.transaction(given.org_id) as tx:
        origin = found(await approvals.origin(tx, given.job_id, read_to), "job")
        barred = [] if terms.self_approval else origin["causes"]
        able = await approvals.deciders(
            tx, terms.approvers, terms.required_clearance, origin["owner_id"], barred
        )
    if terms.named is not None:
        able = [each for each in able if each.id in terms.named]
        chosen = tuple(each.id for each in able)
        terms = replace(terms, approvers=Approvers(members=chosen), named=None)
    return terms if is_met(terms.quorum, [each.roles for each in able]) else None


async def adopt(db: Database, worker_id: UUID, worker_name: str, poison_deaths: int) -> list[Orphan]:
    """Take dead workers' jobs from them, so that whoever is free can claim them."""
    adopted = []
    for orphan in await attempts.find_orphans(db, ORPHANS_AT_ONCE):
        if orphan.worker_id == worker_id:
            continue  # our own lease ran out: the next beat renews it
        decided = adoption(orphan, poison_deaths)
        fact = Fact.of(
            worker_actor(orphan.org_id, worker_id, worker_name),
            decided.action,
            job=str(orphan.id),
            lost_worker=orphan.worker,
            epoch=orphan.epoch,
            reason=decided.error,
        )
        if await attempts.adopt_job(db, orphan, decided, fact):
            adopted.append(orphan)
    return adopted


@dataclass(frozen=True, slots=True)
class Past:
    """What a job has said and done so far."""

    said: list[Said]
    steps: list[StepRow]
    calls: list[ToolCall]
    receipts: dict[UUID, Stamp]
    """By call: of those that somebody approved and that may still be sent."""


async def past(db: Database, given: Assignment, read_to: int) -> Past:
    """Everything a resume needs, in one round trip; a task that has not begun needs nothing."""
    fresh = given.checkpoint is None
    if fresh and given.kind is JobKind.TASK:
        return Past([], [], [], {})
    heard = read_to if given.kind is JobKind.CONVERSATION else None
    return Past(*await steps.past(db, given.org_id, given.job_id, given.session_id, heard, fresh))


async def messages_between(db: Database, given: Assignment, above: int, up_to: int) -> list[Said]:
    async with db.transaction(given.org_id) as tx:
        return await steps.said(tx, given.session_id, above, up_to)


async def leased(db: Database, worker_id: UUID) -> list[Leased]:
    return await attempts.find_leased(db, worker_id)


async def release(db: Database, job: Leased, worker_id: UUID, worker_name: str) -> bool:
    """Hand back a job that its worker does not run; False where it is somebody else's by now."""
    actor = worker_actor(job.org_id, worker_id, worker_name)
    fact = Fact.of(actor, "job_handed_back", job=str(job.id), reason="its attempt ended without a write")
    return await attempts.release_job(db, job.org_id, job.id, worker_id, job.epoch, fact)
