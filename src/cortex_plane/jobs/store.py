"""Jobs, steps, attempts, the journal, signals, usage and workers in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson

from cortex_plane.db.database import NOBODY, Database, Queries, Row, Transaction, one
from cortex_plane.jobs import rules
from cortex_plane.jobs.model.checkpoints import PLANE_KEY
from cortex_plane.jobs.model.effects import Answer, CallStatus, ToolCall
from cortex_plane.jobs.model.jobs import Job, JobChange, JobKind, JobStatus, Step, Worker
from cortex_plane.jobs.model.journal import JournalEntry, Signal, SignalDraft, Wait, Waiter
from cortex_plane.jobs.model.usage import Spent, UsageTotals
from cortex_plane.jobs.rules import Assignment
from cortex_plane.kernel.fields import parse
from cortex_plane.policies.model.policies import PolicyRow
from cortex_plane.policies.model.versions import row_as_json
from cortex_plane.proof.rules.receipts import Stamp
from cortex_plane.sessions.rules import SessionMessage, StepRow
from cortex_plane.tenancy.model.access import Actor, Fact

queries = Queries("jobs")
_STATUSES: Mapping[str, JobStatus] = {status.value: status for status in JobStatus}


@dataclass(frozen=True, kw_only=True, slots=True)
class NewJob:
    session_id: UUID
    agent_id: UUID
    payload: dict[str, Any]
    max_retries: int
    kind: JobKind
    caused_by: UUID | None
    resubmitted_from: UUID | None = None
    policies: Sequence[PolicyRow] = ()


async def insert_job(tx: Transaction, id: UUID, job: NewJob, submitted_by: UUID) -> Job:
    (row,) = await tx.rows(
        queries.insert_job, tx.org, id, job.session_id, job.agent_id, job.payload, job.max_retries,
        job.resubmitted_from, job.kind, job.caused_by, [row_as_json(row) for row in job.policies] or None, submitted_by,
    )  # fmt: skip
    return parse(Job, row)


async def insert_external_job(tx: Transaction, id: UUID, session_id: UUID, agent_id: UUID, actor: Actor) -> None:
    """A job that runs elsewhere from the start, and that no worker claims."""
    kind, by = JobKind.EXTERNAL, actor.user_account_id
    job = NewJob(session_id=session_id, agent_id=agent_id, payload={}, max_retries=0, kind=kind, caused_by=by)
    await insert_job(tx, id, job, actor.identity)


async def get_job(tx: Transaction, id: UUID, sees: UUID | None) -> Job | None:
    return one(Job, await tx.row(queries.get_job, id, sees))


async def lock_job(tx: Transaction, id: UUID, sees: UUID | None) -> Row | None:
    return await tx.row(queries.lock_job, id, sees)


async def list_job_history(tx: Transaction, id: UUID) -> list[JobChange]:
    return [parse(JobChange, row) for row in await tx.rows(queries.list_job_history, id)]


async def cancel_job(tx: Transaction, id: UUID, reason: str) -> bool:
    """Ends what no worker runs; False where one does, or where it has ended."""
    return await tx.value(queries.cancel_job, id, reason) is not None


async def lock_open_job(tx: Transaction, session_id: UUID) -> list[UUID]:
    """The open jobs of a session, locked in one order."""
    return [row["id"] for row in await tx.rows(queries.lock_open_job, session_id)]


async def cancel_open_jobs(tx: Transaction, session_id: UUID, reason: str) -> list[UUID]:
    """Cancel whatever is open in a session; returns the jobs."""
    return [row["id"] for row in await tx.rows(queries.cancel_open_jobs, session_id, reason)]


async def list_step_messages(tx: Transaction, session_id: UUID, above: int, up_to: int) -> list[SessionMessage]:
    return [parse(SessionMessage, row) for row in await tx.rows(queries.list_step_messages, session_id, above, up_to)]


@dataclass(frozen=True, slots=True)
class PastSteps:
    """What a job has said and done so far, as far as no memory covers it."""

    messages: list[SessionMessage] = field(default_factory=list)
    steps: list[StepRow] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    receipts: dict[UUID, Stamp] = field(default_factory=dict)
    """By call: of those that somebody approved and that may still be sent."""
    turned_down: set[tuple[str, str]] = field(default_factory=set)
    """Tool and arguments' digest of every call that a person said no to."""
    memory: dict[str, Any] | None = None
    """Of the session, where the job has not begun yet: message_seq, summary, facts."""
    asked: str | None = None
    """The newest user message that is covered."""


async def list_past_steps(
    db: Database, job: Assignment, read_to: int | None, window_step: int, window_seq: int
) -> PastSteps:
    fresh = job.checkpoint is None
    (row,) = await db.call("job_past", job.org_id, job.job_id, job.session_id, read_to, fresh, window_step, window_seq)
    return PastSteps(
        messages=[parse(SessionMessage, each) for each in row["said"]],
        steps=[parse(StepRow, each) for each in row["steps"]],
        calls=[parse(ToolCall, each) for each in row["calls"]],
        receipts={UUID(call): _stamp(each) for call, each in row["receipts"].items()},
        turned_down={(tool, digest) for tool, digest in row["turned_down"]},
        memory=row["memory"],
        asked=row["asked"],
    )


def _stamp(receipt: dict[str, str]) -> Stamp:
    values = {name: bytes.fromhex(receipt[name]) for name in ("body", "signature", "public_key", "sealed")}
    return Stamp(key_id=UUID(receipt["key_id"]), **values)


async def open_calls(tx: Transaction, job_id: UUID) -> list[ToolCall]:
    """Calls that were written down and have no outcome."""
    return [parse(ToolCall, row) for row in await tx.rows(queries.open_calls, job_id)]


async def get_call(tx: Transaction, job_id: UUID, call_id: UUID) -> ToolCall | None:
    return one(ToolCall, await tx.row(queries.get_call, job_id, call_id))


async def answer_call(tx: Transaction, call_id: UUID, status: CallStatus, answer: Answer, by: str) -> Any:
    """Returns the result that the call has from now on; None where it has none."""
    error = f"settled by {by}: {answer.note or 'given up'}" if status is CallStatus.FAILED else None
    result = answer.result if answer.result is not None else {"confirmed_by": by, "note": answer.note}
    stored_value = result if status is CallStatus.COMPLETED else None
    await tx.rows(queries.answer_call, call_id, status, stored_value, error, by)
    return stored_value


async def list_steps(tx: Transaction, job_id: UUID, above: int, limit: int) -> list[Step]:
    return [parse(Step, row) for row in await tx.rows(queries.list_steps, job_id, above, limit)]


async def stored_result(tx: Transaction, job_id: UUID, id: UUID) -> bytes | None:
    content: bytes | None = await tx.value(queries.stored_result, job_id, id)
    return content


async def claim_jobs(
    db: Database,
    worker_id: UUID,
    apps: Sequence[str],
    limit: int,
    after: UUID,
    running_orgs: Sequence[UUID] = (),
    shares: rules.SlotShares = rules.UNSHARED,
) -> tuple[list[Assignment], bool]:
    """Leased jobs, and whether others were claiming at the same moment, so that there may be more."""
    rows = await db.call(
        "claim_jobs", None, worker_id, list(apps), limit, after, list(running_orgs), shares.share, shares.reserve,
        shares.org_jobs,
    )  # fmt: skip
    # What only some jobs have stands in their settings, under the plane's own key.
    assignments = [
        Assignment(**{**row, "kind": JobKind(row["kind"])}, **row["skill_config"].pop(PLANE_KEY, {}))
        for row in rows
        if row["job_id"] is not None
    ]
    return assignments, len(assignments) < len(rows)


async def advance_job(
    db: Database | Transaction, job: Assignment, worker_id: UUID, number: int, write: rules.StepWrite,
    dispatch_seconds: float, open_approvals: int = 0,
) -> rules.WriteResult | None:  # fmt: skip
    """None: the job is not this worker's any more."""
    step = write.step
    rows = await db.call(
        "advance_job", job.org_id, job.job_id, worker_id, job.epoch, number,
        write.checkpoint, write.memory, write.mac,
        step.index if step else None, step.message_seq if step else write.message_seq,
        step.json(write.in_rows) if step else None, step.prompt_tokens if step else None,
        step.completion_tokens if step else None, step.seconds if step else None,
        write.done_step, write.calls.decode() if write.calls else None, write.arguments or None,
        write.outcomes.decode() if write.outcomes else None, write.results or None,
        write.intents.decode() if write.intents else None,
        dispatch_seconds if write.dispatches else None, write.past_boundary,
        *(map(list, zip(*write.stored, strict=True)) if write.stored else (None, None)),
        write.reply, write.status, write.error, write.delay_seconds, write.hold,
        write.result.decode() if write.result else None,
        write.policies, open_approvals, write.more or None,
        *(map(list, zip(*write.events, strict=True)) if write.events else ((), ())),
        [fact.action for fact in write.facts], [fact.body for fact in write.facts],
    )  # fmt: skip
    if not rows:
        return None
    (row,) = rows
    return rules.WriteResult(**{**row, "status": _STATUSES[row["status"]]})


async def find_orphans(db: Database, limit: int) -> list[rules.Orphan]:
    return [parse(rules.Orphan, row) for row in await db.call("find_orphans", None, limit)]


async def adopt_job(db: Database, orphan: rules.Orphan, adoption: rules.Adoption, fact: Fact) -> bool:
    """False: somebody else has it, or what it was decided from has changed."""
    rows = await db.call(
        "adopt_job", orphan.org_id, orphan.id, orphan.worker_id, orphan.epoch, orphan.cancelled, orphan.held,
        adoption.status, adoption.error, fact.action, fact.body,
    )  # fmt: skip
    return bool(rows[0]["adopt_job"])


async def find_leased(db: Database, worker_id: UUID) -> list[rules.Leased]:
    return [parse(rules.Leased, row) for row in await db.call("find_leased", None, worker_id)]


async def release_job(
    db: Database,
    org_id: UUID,
    job_id: UUID,
    worker_id: UUID,
    epoch: int,
    fact: Fact,
    handback: rules.HandBack = rules.UNCOUNTED,
) -> bool:
    rows = await db.call(
        "release_job", org_id, job_id, worker_id, epoch, handback.count, handback.delay_seconds, handback.error, fact.action,
        fact.body,
    )  # fmt: skip
    return bool(rows[0]["release_job"])


async def list_past_entries(db: Database, org_id: UUID, job_id: UUID) -> tuple[list[JournalEntry], dict[str, Any]]:
    """The entries of a job, and by the key of the entry that waits for it: what arrived."""
    (row,) = await db.call("job_journal", org_id, job_id)
    return [parse(JournalEntry, each) for each in row["entries"]], row["arrived"]


async def list_journal(tx: Transaction, job_id: UUID, above: int, limit: int) -> list[JournalEntry]:
    return [parse(JournalEntry, row) for row in await tx.rows(queries.list_journal, job_id, above, limit)]


async def register_worker(
    db: Database, id: UUID, name: str, host: str, pid: int, apps: list[str], concurrency: int, lease: timedelta,
    org_id: UUID | None = None,
) -> None:  # fmt: skip
    """``org_id``: of a worker that runs the jobs of one org alone. In one transaction with a look at the master key: no rotation begins beside a worker that has the old one."""
    async with db.transaction(NOBODY) as tx:
        await db.require_current_key(tx)
        await tx.call("register_worker", None, id, name, host, pid, apps, concurrency, lease, org_id)


async def beat_worker(
    db: Database, id: UUID, lease: timedelta
) -> tuple[datetime, list[UUID], dict[UUID, float]] | None:
    """The new end of the lease, the jobs that are cancelled, and in how many seconds jobs should hold; None where the worker was forgotten."""
    rows = await db.call("beat", None, id, lease)
    if not rows:
        return None
    overdue = {UUID(job_id): seconds for job_id, seconds in rows[0]["overdue"].items()}
    return rows[0]["expires_at"], rows[0]["cancelled"], overdue


async def stop_worker(db: Database, id: UUID) -> None:
    await db.call("stop_worker", None, id)


async def forget_workers(db: Database) -> None:
    await db.call("forget_workers", None)


async def list_workers(tx: Transaction) -> list[Worker]:
    return [parse(Worker, row) for row in await tx.rows(queries.list_workers)]


@dataclass(frozen=True, slots=True)
class PlaneKey:
    """Which master key this database is used with, and how far its rotation is."""

    fingerprint: bytes
    previous: bytes | None
    """The old key, sealed with the new one, for as long as a rotation is under way."""
    resealed_org_created_at: datetime | None
    resealed_org: UUID | None
    resealed_job: UUID | None


async def get_plane_key(tx: Transaction) -> PlaneKey | None:
    """None where no process of a plane has started on this database yet."""
    return one(PlaneKey, await tx.row(queries.get_plane_key))


async def lock_plane_key(tx: Transaction) -> PlaneKey | None:
    return one(PlaneKey, await tx.row(queries.lock_plane_key))


@dataclass(frozen=True, slots=True)
class ReachedWaiters:
    """Jobs that wait for a signal, each locked; ``more``: others wait, too."""

    waiters: list[Waiter]
    more: bool


async def send_signal(
    tx: Transaction, id: UUID, draft: SignalDraft, sender_id: UUID, sent_by: str, limit: int
) -> tuple[UUID, bool, ReachedWaiters | None]:
    """The signal's id, whether it is new, and whom it reaches; None where another payload was sent before."""
    (row,) = await tx.call(
        "send_signal", tx.org, id, draft.name, draft.key, orjson.dumps(draft.payload).decode(), sender_id, sent_by, limit
    )  # fmt: skip
    return row["id"], row["made"], _reached_waiters(row) if row["same"] else None


async def wake_more_waiters(tx: Transaction, id: UUID, limit: int) -> ReachedWaiters | None:
    """Whoever else waits; None where the signal is forgotten."""
    rows = await tx.call("more_waiters", tx.org, id, limit)
    return _reached_waiters(rows[0]) if rows else None


def _reached_waiters(row: Row) -> ReachedWaiters:
    return ReachedWaiters([parse(Waiter, each) for each in row["waits"]], row["more"])


async def hear_signals(
    tx: Transaction, id: UUID, waiters: ReachedWaiters, events: Sequence[dict[str, str]], bodies: Sequence[bytes]
) -> None:
    """Deliver the signal to the waiters and wake them. ``events`` and ``bodies`` are their events and audit entries."""
    await tx.call(
        "hear_signal", tx.org, id, [each.session_id for each in waiters.waiters],
        [each.job_id for each in waiters.waiters], [each.entry for each in waiters.waiters],
        list(events), list(bodies), waiters.more,
    )  # fmt: skip


async def get_signal(tx: Transaction, id: UUID) -> Signal | None:
    return one(Signal, await tx.row(queries.get_signal, id))


async def list_signal_waits(tx: Transaction, job_id: UUID) -> list[Wait]:
    return [parse(Wait, row) for row in await tx.rows(queries.list_signal_waits, job_id)]


async def forget_signals(db: Database, older: timedelta, limit: int) -> int:
    (row,) = await db.call("forget_signals", None, older, limit)
    count: int = row["forget_signals"]
    return count


async def list_job_usage(tx: Transaction, job_id: UUID) -> UsageTotals:
    (row,) = await tx.rows(queries.list_job_usage, job_id)
    return parse(UsageTotals, row)


async def spent_by_job(db: Database, job: Assignment) -> Spent:
    """For its worker: what it took so far, and its cost as far as it is known."""
    async with db.transaction(job.org_id) as tx:
        (row,) = await tx.rows(queries.spent_by_job, job.job_id)
    return Spent(tokens=row["tokens"], cost_micros=row["cost_micros"])


async def spent_today(db: Database, job: Assignment) -> tuple[Spent, float]:
    """By the job's agent since midnight UTC, and the seconds until the next one."""
    async with db.transaction(job.org_id) as tx:
        (row,) = await tx.rows(queries.spent_today, job.agent_id)
    return Spent(tokens=row["tokens"], cost_micros=row["cost_micros"]), row["seconds_left"]
