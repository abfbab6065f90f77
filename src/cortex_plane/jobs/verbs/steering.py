"""What people and programs do to a job: pause, resume, cancel, look into it, and send it signals.

Also the failure of jobs whose checkpoints cannot be trusted. Nothing is repaired; the history of the job, the log, a metric and a message
to operators say so."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import structlog

from cortex_plane.db.database import Database, Row, Transaction, after, many, page
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model import jobs as job_model
from cortex_plane.jobs.model.checkpoints import CheckpointCorrupt, as_shown, tool_ids
from cortex_plane.jobs.model.effects import IN_DOUBT, CallStatus, Question, ToolCall, question
from cortex_plane.jobs.model.jobs import Hold, JobStatus, PauseSource, SessionReceipt, SteeringResult
from cortex_plane.jobs.model.journal import AT_ONCE, KEPT, Signal, SignalDraft, SignalReceipt, taken
from cortex_plane.jobs.store import ReachedWaiters, queries
from cortex_plane.jobs.verbs.jobs import job_reader
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, Forbidden, InvalidInput
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.kernel.meters import meters
from cortex_plane.kernel.pages import After, Page
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import SessionEvent
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.events import EventType
from cortex_plane.sessions.model.sessions import RuntimeStatus, SessionStatus
from cortex_plane.sessions.verbs.sessions import end_approvals
from cortex_plane.tenancy.model.access import Actor, Fact, Permission, scheduler_actor
from cortex_plane.tenancy.verbs.frame import once_only, record, require_found, transaction_verb, verb

log = structlog.get_logger()

LIFTED = (
    Hold.OPERATOR,
    Hold.OWNER,
    Hold.CODE_CHANGED,
    Hold.PROMPT_CHANGED,
    Hold.GATES_UNREADABLE,
    Hold.POLICIES_UNREADABLE,
)
"""What a resume lifts. A session's hold ends with the session's, an uncertain effect with its answer."""


def _may_lift(actor: Actor) -> tuple[Hold, ...]:
    """Whoever sees only their own lifts only their own: an operator's pause is an operator's to end."""
    return LIFTED if actor.sees is None else (Hold.OWNER,)


@transaction_verb(Permission.JOB_STEER)
async def cancel(tx: Transaction, actor: Actor, id: UUID, cancellation: job_model.Cancellation) -> SteeringResult:
    """Cancelling a cancelled job changes nothing; a job that ended otherwise is a conflict."""
    job_row = require_found(await jobs_store.lock_job(tx, id, actor.sees), "job")
    if job_row["status"] in job_model.TERMINAL - {JobStatus.CANCELLED}:
        raise Conflict(f"This job is {job_row['status']} already.", code="job_finished")
    why = cancellation.reason or f"cancelled by {actor.name}"
    data = {"reason": why}
    did_change = True
    if await jobs_store.cancel_job(tx, id, why):
        await end_approvals(tx, job_row["session_id"], [id], actor, why)
        await _append_status(tx, job_row, id, actor, "job_cancelled", data, {"status": JobStatus.CANCELLED, **data})
    elif await tx.value(queries.request_cancel, id, why) is not None:
        await _append_status(tx, job_row, id, actor, "job_cancel_requested", data, {"pending_cancel": True, **data})
    else:
        did_change = False
    return await steering_result(tx, id, did_change)


@verb(Permission.JOB_STEER)
async def pause(db: Database, actor: Actor, id: UUID, pause: job_model.Pause) -> SteeringResult:
    """Hold a job until somebody resumes it. Pausing a paused one changes nothing, or lets it hold sooner."""
    async with db.transaction(actor.org_id) as tx:
        job_row = require_found(await jobs_store.lock_job(tx, id, actor.sees), "job")
        require_open(job_row)
        hold = Hold.OPERATOR if actor.sees is None else Hold.OWNER
        did_change, _ = await _hold(tx, id, job_row, hold, actor, pause)
        receipt = await steering_result(tx, id, did_change)
    _count_pause(actor, did_change, receipt.pending)
    return receipt


@verb(Permission.JOB_STEER)
async def resume(db: Database, actor: Actor, id: UUID, resumption: job_model.Resumption) -> SteeringResult:
    """Lift what the actor may lift. Resuming what is not held, or over, is a conflict."""
    async with db.transaction(actor.org_id) as tx:
        job_row = require_found(await jobs_store.lock_job(tx, id, actor.sees), "job")
        if job_row["status"] in job_model.TERMINAL:
            raise _not_held(f"This job is {job_row['status']} already.", "Submit it again with `cortex job resubmit`.")
        lifted = await lift_holds(tx, id, job_row, _may_lift(actor), actor, resumption.note)
        if lifted is None:
            if not job_row["holds"]:
                raise _not_held("This job is not held.", "Look at it with `cortex job show`.")
            raise _still_held("job", job_row["holds"])
        await _add_operator_input(tx, job_row, id, actor, resumption.operator_input)
        receipt = replace(await steering_result(tx, id, True), resumed_at_loop=lifted.step)
    db.hints.work()
    meters().resumed(actor.org_id, _source(actor))
    return receipt


@verb(Permission.SESSION_HOLD)
async def pause_session(db: Database, actor: Actor, id: UUID, pause: job_model.Pause) -> SessionReceipt:
    """Hold a session: its open jobs, and whatever it is asked to do until it is resumed."""
    async with db.transaction(actor.org_id) as tx:
        session_row = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        if session_row["status"] == SessionStatus.TERMINATED:
            raise Conflict("This session has ended.", code="session_terminated", hint="Open a new session.")
        source = _source(actor)
        held_at = await sessions_store.hold_session(tx, id, source, pause.reason or f"paused by {actor.name}")
        is_pending = False
        for job_id in await jobs_store.lock_open_job(tx, id):
            job = require_found(await jobs_store.lock_job(tx, job_id, None), "job")
            _, is_told = await _hold(tx, job_id, job, Hold.SESSION, actor, pause)
            is_pending = is_pending or is_told
        if held_at is not None:
            events: list[SessionEvent] = []
            if not is_pending and not session_row["held_by"]:
                data = {**_pause_data(source, actor, pause), "paused_at": held_at.isoformat()}
                events.append((EventType.SESSION_PAUSED, None, data))
            fact = Fact.of(actor, "session_held", reason=pause.reason, **_correlation(pause))
            await proof_store.append_to_session(tx, id, [fact], events)
        receipt = await _session_receipt(tx, id, held_at is not None)
    _count_pause(actor, held_at is not None, receipt.pending)
    return receipt


def _source(actor: Actor) -> PauseSource:
    return PauseSource.OPERATOR if actor.sees is None else PauseSource.OWNER


def _count_pause(actor: Actor, did_change: bool, pending: bool) -> None:
    if did_change:
        meters().paused(actor.org_id, _source(actor))
        if not pending:
            meters().suspended(actor.org_id, 0.0)


@verb(Permission.SESSION_HOLD)
async def resume_session(db: Database, actor: Actor, id: UUID, resumption: job_model.Resumption) -> SessionReceipt:
    """Lift the hold of a session: an operator any, its owner their own. Resuming what is not held, or over, is a conflict."""
    async with db.transaction(actor.org_id) as tx:
        session_row = require_found(await sessions_store.lock_session(tx, id, actor.sees), "session")
        if session_row["status"] == SessionStatus.TERMINATED:
            raise _not_held("This session has ended.", "Open a new session.")
        if session_row["held_at"] is None:
            raise _not_held("This session is not held.", "Look at it with `cortex session show`.")
        if actor.sees is not None and PauseSource.OWNER not in session_row["held_by"]:
            raise _still_held("session", [PauseSource.OPERATOR])
        released_at = await sessions_store.release_session(tx, id, None if actor.sees is None else PauseSource.OWNER)
        jobs = await jobs_store.lock_open_job(tx, id) if released_at is not None else []
        steps = []
        for job_id in jobs:
            job = require_found(await jobs_store.lock_job(tx, job_id, None), "job")
            steps.append(await lift_holds(tx, job_id, job, (Hold.SESSION,), actor, resumption.note))
            if len(jobs) == 1:
                await _add_operator_input(tx, job, job_id, actor, resumption.operator_input)
        if resumption.operator_input is not None and len(jobs) != 1:
            raise _nobody_reads(
                "It has none that is open." if not jobs else "It has several: resume the one that you mean."
            )
        events: list[SessionEvent] = []
        if released_at is not None and not jobs:
            data = {"by": actor.name, "resumed_by_approval": False, "resumed_at": released_at.isoformat()}
            events.append((EventType.SESSION_RESUMED, None, data))
        await proof_store.append_to_session(tx, id, [Fact.of(actor, "session_resumed", note=resumption.note)], events)
        loops = [lifted.step for lifted in steps if lifted is not None]
        receipt = replace(await _session_receipt(tx, id, True), resumed_at_loop=loops[0] if len(loops) == 1 else None)
    db.hints.work()
    meters().resumed(actor.org_id, _source(actor))
    return receipt


def _not_held(message: str, hint: str) -> Conflict:
    return Conflict(message, code="failed_precondition", hint=hint)


def _still_held(what: str, holds: Sequence[str]) -> Conflict:
    return Conflict(
        f"This {what} is held by {', '.join(holds)}, which you cannot lift with a resume.",
        code="still_held",
        hint="Answer its question with `cortex job settle`, resume its session, or ask an operator.",
    )


def _nobody_reads(why: str) -> InvalidInput:
    return InvalidInput(
        f"Nobody would read `operator_input`. {why}",
        code="operator_input_unread",
        hint="Leave it out, or send a message or a signal.",
        field="operator_input",
    )


list_steps = job_reader(jobs_store.list_steps)
list_journal = job_reader(jobs_store.list_journal)
list_job_usage = job_reader(jobs_store.list_job_usage)


@transaction_verb(Permission.JOB_READ)
async def get_stored_result(tx: Transaction, actor: Actor, id: UUID, result_id: UUID) -> bytes:
    """A result that was too large for its step."""
    require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
    return require_found(await jobs_store.stored_result(tx, id, result_id), "result")


@transaction_verb(Permission.JOB_READ)
async def get_checkpoint(tx: Transaction, actor: Actor, id: UUID) -> dict[str, Any]:
    """The job's durable state, as it would be resumed from."""
    job = require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
    blob = require_found(await tx.value(queries.get_checkpoint, id), "checkpoint")
    calls = many(ToolCall, await tx.rows(queries.list_current_calls, id, tool_ids(blob)))
    return as_shown(blob, job.status, calls, await tx.rows(queries.list_log, id))


@transaction_verb(Permission.JOB_READ)
async def get_state(tx: Transaction, actor: Actor, id: UUID) -> dict[str, Any]:
    """What its agent keeps with the job."""
    require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
    state = await tx.value(queries.get_state, id)
    return state if isinstance(state, dict) else {}


@transaction_verb(Permission.JOB_READ)
async def list_questions(tx: Transaction, actor: Actor, id: UUID) -> list[Question]:
    """Calls of a job of which nobody knows whether they happened."""
    require_found(await jobs_store.get_job(tx, id, actor.sees), "job")
    return [question(call) for call in await jobs_store.open_calls(tx, id) if call.status is CallStatus.UNCERTAIN]


def require_open(job_row: Row) -> None:
    if job_row["status"] in job_model.TERMINAL:
        raise Conflict(
            f"This job is {job_row['status']} already.",
            code="job_finished",
            hint="Submit it again with `cortex job resubmit`.",
        )


async def _hold(
    tx: Transaction, id: UUID, job_row: Row, hold: Hold, actor: Actor, pause: job_model.Pause
) -> tuple[bool, bool]:
    """Whether the hold is new, and whether readers of events are told of a pause."""
    pause_data = _pause_data(_source(actor), actor, pause)
    row = await tx.row(queries.hold_job, id, hold, pause_data, float(pause.within_seconds))
    if row is None:  # it stood already
        hold_by = await tx.value(queries.shorten_pause, id, float(pause.within_seconds))
        if hold_by is not None:
            shortened = {**pause_data, "hold_by": hold_by.isoformat()}
            await append_fact(tx, job_row["session_id"], id, actor, "pause_shortened", shortened, [])
        return False, False
    data = {"reason": pause.reason, "hold": hold, **_correlation(pause)}
    status: dict[str, Any] = {"status": job_row["status"], "pending_pause": bool(job_row["leased"]), "hold": hold}
    if row["pause_now"]:
        await tx.rows(queries.pause_job, id)
        status = {"status": JobStatus.PAUSED, "reason": pause.reason, "hold": hold}
    events: list[SessionEvent] = [(EventType.STATUS, id, status)]
    is_first = not job_row["holds"]
    if is_first:
        events.append((EventType.PAUSE_PENDING if job_row["leased"] else EventType.SESSION_PAUSED, id, row["data"]))
    action = "job_paused" if row["pause_now"] else "job_held"
    await append_fact(tx, job_row["session_id"], id, actor, action, data, events)
    return True, is_first


def _pause_data(source: PauseSource, actor: Actor, pause: job_model.Pause) -> dict[str, Any]:
    data = {"pause_source": source, "by": actor.name, **_correlation(pause)}
    return data if pause.reason is None else {**data, "reason": pause.reason}


def _correlation(pause: job_model.Pause) -> dict[str, str]:
    return {} if pause.correlation_id is None else {"correlation_id": pause.correlation_id}


@dataclass(frozen=True, slots=True)
class LiftedHolds:
    step: int | None
    """The one with which the job goes on, where nothing else holds it."""


async def lift_holds(
    tx: Transaction, id: UUID, job_row: Row, holds: Sequence[Hold], actor: Actor, note: str | None
) -> LiftedHolds | None:
    """None: none of these holds the job."""
    data = {"holds": [hold for hold in holds if hold in job_row["holds"]], "note": note}
    is_paused = job_row["status"] == JobStatus.PAUSED
    row = await tx.row(queries.wake_job if is_paused else queries.lift_job_hold, id, list(holds))
    if row is None:
        return None
    if is_paused:
        action, event = "job_resumed", {"status": row["status"], **data}
    else:
        action, event = "job_released", {"status": job_row["status"], "pending_pause": False}
    events: list[SessionEvent] = [(EventType.STATUS, id, event)]
    step = None
    if set(job_row["holds"]) <= set(holds):
        step = 0 if job_row["step_index"] is None else job_row["step_index"] + 1
        if not job_row["leased"]:
            resumed = {"by": actor.name, "resumed_by_approval": False, "resumed_at_loop": step}
            events.append((EventType.SESSION_RESUMED, id, {**resumed, "resumed_at": row["at"].isoformat()}))
    await append_fact(tx, job_row["session_id"], id, actor, action, data, events)
    return LiftedHolds(step)


async def _add_operator_input(tx: Transaction, job_row: Row, id: UUID, actor: Actor, words: Any) -> None:
    """Words that the model reads before it goes on. Whoever gave them is a cause of what it asks for."""
    if words is None:
        return
    if actor.sees is not None:
        # The model would take whom it talks with for somebody who runs the plane.
        raise Forbidden(
            "Only operators say something with a resume.",
            code="operator_input_unread",
            hint="Leave `operator_input` out, and send a message to the agent instead.",
        )
    text = words if isinstance(words, str) else canonical(words).decode()
    if not text.strip():
        raise _nobody_reads("It is empty.")
    seq = await sessions_store.add_operator_words(tx, id, text, actor)
    if seq is None:
        raise _nobody_reads("The agent of this job is a function, or runs elsewhere.")
    data = {"text_sha256": hashlib.sha256(text.encode()).hexdigest(), "seq": seq}
    await append_fact(tx, job_row["session_id"], id, actor, "operator_input", data, [])


async def _append_status(
    tx: Transaction, job_row: Row, id: UUID, actor: Actor, action: str, data: dict[str, Any], event: dict[str, Any]
) -> None:
    await append_fact(tx, job_row["session_id"], id, actor, action, data, [("status", id, event)])


async def append_fact(
    tx: Transaction, session_id: UUID, id: UUID, actor: Actor, action: str, data: dict[str, Any],
    events: Sequence[SessionEvent], more: Sequence[Fact] = (),
) -> None:  # fmt: skip
    fact = Fact.of(actor, action, job=str(id), **data)
    await proof_store.append_to_session(tx, session_id, [fact, *more], events, job=id)


async def complete_session(tx: Transaction, actor: Actor, session_id: UUID, id: UUID) -> None:
    """The session ends with its one job, which is completed. Under the locks of both."""
    await end_approvals(tx, session_id, [id], actor, "its session was completed")
    await sessions_store.set_session_status(tx, session_id, SessionStatus.TERMINATED)


async def fail_job(
    tx: Transaction, actor: Actor, session_id: UUID, id: UUID, error: str, *, ends_session: bool = False,
    more: Sequence[Fact] = (),
) -> None:  # fmt: skip
    """Under the lock of the job: it fails, and nobody is asked about it any more. ``ends_session``: under the lock of both."""
    await tx.rows(queries.fail_job, id, error)
    if ends_session:
        await sessions_store.set_session_status(tx, session_id, SessionStatus.TERMINATED)
    await end_approvals(tx, session_id, [id], actor, error)
    status = {"status": JobStatus.FAILED, "error": error[:500]}
    events = [("error", id, {"message": error[:500]}), ("status", id, status)]
    await append_fact(tx, session_id, id, actor, "job_failed", {"error": error}, events, more)


async def steering_result(tx: Transaction, id: UUID, did_change: bool) -> SteeringResult:
    job = require_found(await jobs_store.get_job(tx, id, None), "job")
    calls = many(ToolCall, await tx.rows(queries.last_calls, id))
    return SteeringResult(
        job=job,
        changed=did_change,
        pending=job.pending_pause or job.pending_cancel,
        settled=[call.id for call in calls if call.finished_at is not None],
        uncertain=[call.id for call in calls if call.status in IN_DOUBT],
        status=job.runtime_status,
        **require_found(await tx.row(queries.pause_of_job, id), "job"),
    )


async def _session_receipt(tx: Transaction, id: UUID, did_change: bool) -> SessionReceipt:
    session = require_found(await sessions_store.get_session(tx, id, None), "session")
    receipts = [await steering_result(tx, job_id, did_change) for job_id in await jobs_store.lock_open_job(tx, id)]
    pending = any(receipt.job.pending_pause for receipt in receipts)
    return SessionReceipt(
        session=session,
        changed=did_change,
        pending=pending,
        jobs=[receipt.job for receipt in receipts],
        settled=[call for receipt in receipts for call in receipt.settled],
        uncertain=[call for receipt in receipts for call in receipt.uncertain],
        status=RuntimeStatus.ACTIVE if pending else session.agent_status,
        checkpoint_key=receipts[0].checkpoint_key if len(receipts) == 1 else None,
        paused_at=None if pending else max([r.paused_at for r in receipts if r.paused_at], default=session.held_at),
        hold_by=max([r.hold_by for r in receipts if r.hold_by], default=None),
    )


FORGOTTEN_AT_ONCE = 10_000


@verb(Permission.SIGNAL_SEND)
async def send_signal(
    db: Database, actor: Actor, draft: SignalDraft, once: IdempotencyKey | None = None, *, at_once: int = AT_ONCE
) -> SignalReceipt:
    """The first payload for a name and a key stays: the same again changes nothing, another one is a conflict."""
    made, woken, more = False, 0, False
    async with db.transaction(actor.org_id) as tx:

        async def make() -> UUID:
            nonlocal made, woken, more
            id, made, reached = await jobs_store.send_signal(tx, new_id(), draft, actor.identity, actor.name, at_once)
            if reached is None:
                raise taken(draft.name, draft.key)
            woken, more = await _deliver(tx, actor, id, draft.name, draft.key, reached), reached.more
            if made:
                digest = hashlib.sha256(canonical(draft.payload)).hexdigest()
                await record(
                    tx, actor, "signal_sent", signal=str(id), name=draft.name, key=draft.key, payload_sha256=digest,
                    reached=woken, more=more,
                )  # fmt: skip
            return id

        id, _ = await once_only(tx, actor, "signals.send", once, make)
        signal = require_found(await jobs_store.get_signal(tx, id), "signal")
    if woken:
        db.hints.work()
    while more:
        count, more = await _deliver_more(db, actor, signal, at_once)
        woken += count
    return SignalReceipt(signal=signal, changed=made, woken=woken)


async def _deliver(tx: Transaction, actor: Actor, id: UUID, name: str, key: str, waiters: ReachedWaiters) -> int:
    """How many jobs were told."""
    events = [{"signal_id": str(id), "name": name, "key": key, "entry": each.entry} for each in waiters.waiters]
    facts = [
        Fact.of(actor, "signal_received", signal=str(id), name=name, key=key, job=str(each.job_id), entry=each.entry)
        for each in waiters.waiters
    ]  # fmt: skip
    await jobs_store.hear_signals(tx, id, waiters, events, [fact.body for fact in facts])
    return len({each.job_id for each in waiters.waiters})


async def _deliver_more(db: Database, actor: Actor, signal: Signal, at_once: int) -> tuple[int, bool]:
    async with db.transaction(actor.org_id) as tx:
        waiters = await jobs_store.wake_more_waiters(tx, signal.id, at_once)
        if waiters is None:
            return 0, False
        count = await _deliver(tx, actor, signal.id, signal.name, signal.key, waiters)
    if count:
        db.hints.work()
    return count, waiters.more


@transaction_verb(Permission.SIGNAL_READ)
async def list_signals(
    tx: Transaction, actor: Actor, position: After, limit: int, *, name: str | None = None, key: str | None = None
) -> Page[Signal]:
    """Newest first. Whoever is not staff sees what they sent themselves."""
    rows = await tx.rows(queries.list_signals, *after(position), limit + 1, actor.sees, name, key)
    return page(Signal, rows, limit)


list_waits = job_reader(jobs_store.list_signal_waits)


async def deliver_waiting_signals(db: Database) -> None:
    """Jobs that were not told because the sender died between two transactions."""
    for org_id, id in [(row["org_id"], row["id"]) for row in await db.call("find_untold_signals", None, AT_ONCE)]:
        async with db.transaction(org_id) as tx:
            signal = await jobs_store.get_signal(tx, id)
        more = signal is not None
        while more and signal is not None:
            _, more = await _deliver_more(db, scheduler_actor(org_id, new_id(), "scheduler"), signal, AT_ONCE)


async def forget_signals(db: Database) -> None:
    """Signals that are old and that no open job has heard, and waits of jobs that ended."""
    while await jobs_store.forget_signals(db, KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass


def log_corruption(org_id: UUID, agent_id: UUID, corrupt: Mapping[UUID, CheckpointCorrupt]) -> None:
    """After the commit: for each of these jobs of the agent a line of the log and a count."""
    for job_id, error in corrupt.items():
        log.error(
            "checkpoint corrupt", jobId=str(job_id), agentId=str(agent_id), corruptionType=error.corruption_type,
            error=error.message,
        )  # fmt: skip
        meters().corrupt(org_id, error.corruption_type)


def failure_message(job_id: UUID, error: CheckpointCorrupt) -> str:
    return f"Checkpoint corruption detected: {error.message} (job {job_id}, not resumed) {error.hint}"


def corruption_fact(error: CheckpointCorrupt) -> dict[str, Any]:
    """For the audit entry `checkpoint_corrupt`."""
    return {"type": error.corruption_type, "error": error.message}


async def has_begun(db: Database, org_id: UUID, id: UUID) -> bool:
    """Whether there are steps, calls or a memory of a job, which only a write with a checkpoint makes."""
    async with db.transaction(org_id) as tx:
        return bool(await tx.value(queries.has_begun, id))


async def fail_corrupt_jobs(
    tx: Transaction, actor: Actor, session_id: UUID, corrupt: Mapping[UUID, CheckpointCorrupt]
) -> None:
    """Under the lock of the jobs, which nobody runs: they fail, and the approvals that are for them alone are cancelled."""
    for id, error in corrupt.items():
        message = failure_message(id, error)
        await tx.rows(queries.report_corruption, tx.org, id, error.corruption_type, message)
        fact = Fact.of(actor, "checkpoint_corrupt", job=str(id), **corruption_fact(error))
        await fail_job(tx, actor, session_id, id, message, more=[fact])
