"""Sessions of agents that run elsewhere: each has one job, which nobody leases, from its opening to its end."""

from __future__ import annotations

from uuid import UUID

from cortex_plane.calls.model import Ending
from cortex_plane.calls.store import queries
from cortex_plane.calls.verbs.context import lock_session, read_session
from cortex_plane.db.database import Database, Row
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict, CortexError, InvalidInput
from cortex_plane.sessions.model.sessions import Session
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import verb

NOT_BEGUN = frozenset({CallStatus.ALLOWED})
"""What the agent may do and has not begun ends with its session. What a person approved does not: somebody's yes waits there
for whoever comes with the same key."""


@verb(Permission.JOB_SUBMIT)
async def complete(db: Database, actor: Actor, session_id: UUID, ending: Ending) -> Session:
    """The agent is done. Nothing of it may be open: whoever runs a call or waits for a person is not done."""
    if ending.error is not None:
        raise InvalidInput(
            "What is completed has no error.", field="error", hint="Send `result`, or end it with `/fail`."
        )

    async def once(unread: CortexError | None) -> Session:
        async with db.transaction(actor.org_id) as tx:
            job = await lock_session(tx, actor, session_id)
            if job["status"] != JobStatus.COMPLETED:
                _require_open(job)
                calls = [call for call in await jobs_store.open_calls(tx, job["id"]) if call.status not in NOT_BEGUN]
                if calls:
                    raise Conflict(
                        f"{len(calls)} of its calls are not settled: the first is {calls[0].tool_name}, {calls[0].status}.",
                        code="calls_open",
                        hint="Report their outcomes, wait for their decisions, begin what was approved, or end the session with `/fail`.",
                    )
                if await tx.value(queries.complete_job, job["id"], ending.result) is None:
                    raise Conflict(
                        "This session is held.", code="external_held", hint="Wait until somebody resumes it."
                    )
                await steering.complete_session(tx, actor, session_id, job["id"])
                await session_gates.end(tx, actor, session_id, job["id"], unread)
                event = ("status", job["id"], {"status": JobStatus.COMPLETED})
                await steering.append_fact(tx, session_id, job["id"], actor, "job_completed", {}, [event])
            return await read_session(tx, session_id)

    return await session_gates.with_gate_record(db, actor.org_id, once)


@verb(Permission.JOB_SUBMIT)
async def fail(db: Database, actor: Actor, session_id: UUID, ending: Ending) -> Session:
    """The agent gives up. Nobody is asked any more; what has begun is still settled."""
    if ending.result is not None:
        raise InvalidInput(
            "What failed has no result.", field="result", hint="Send `error`, or end it with `/complete`."
        )
    error = ending.error or "the agent gave up"

    async def once(unread: CortexError | None) -> Session:
        async with db.transaction(actor.org_id) as tx:
            job = await lock_session(tx, actor, session_id)
            if job["status"] != JobStatus.FAILED:
                _require_open(job)
                await steering.fail_job(tx, actor, session_id, job["id"], error, ends_session=True)
                await session_gates.end(tx, actor, session_id, job["id"], unread)
            return await read_session(tx, session_id)

    return await session_gates.with_gate_record(db, actor.org_id, once)


def _require_open(job: Row) -> None:
    if job["status"] in TERMINAL:
        raise Conflict(
            f"This session is over: its job is {job['status']}.",
            code="external_over",
            hint="Open a new session where the agent is to go on.",
        )
