"""Sessions of agents that run elsewhere: how they end, their locks, and the context of their calls. Each has one job, which nobody
leases."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import TypeVar
from uuid import UUID
from weakref import WeakValueDictionary

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import Ending, ExternalCall, ReportedUsage, advised
from cortex_plane.calls.store import CallContext, StoredCall, queries
from cortex_plane.db.database import Database, NestedDatabase, NotAtHand, Row, Transaction
from cortex_plane.gates.verbs import session_gates
from cortex_plane.jobs import store as jobs_store
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import TERMINAL, JobStatus
from cortex_plane.jobs.model.usage import UsageTotals
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import AlreadyExists, Conflict, CortexError, InvalidInput
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import Session
from cortex_plane.tenancy.model.access import Actor, ActorKind, Permission
from cortex_plane.tenancy.verbs.frame import once_only, require_found, verb

NOT_BEGUN = frozenset({CallStatus.ALLOWED, CallStatus.PARKED})
"""What the agent may do and has not begun, or was parked, ends with its session. What a person approved does not: somebody's yes waits there
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


@verb(Permission.JOB_SUBMIT)
async def report_usage(
    db: Database, actor: Actor, session_id: UUID, usage: ReportedUsage, once: IdempotencyKey | None = None
) -> UsageTotals:
    """It counts also after the session is over: it was used."""
    async with db.transaction(actor.org_id) as tx:
        session = require_found(await sessions_store.get_session(tx, session_id, call_sight(actor)), "session")
        job = await tx.row(queries.list_session_calls, session.id)
        if job is None:
            raise not_external()

        async def record() -> UUID:
            id = new_id()
            await tx.rows(
                queries.record_reported_usage, job["id"], id, usage.model, usage.prompt_tokens, usage.completion_tokens,
                usage.cache_read_tokens, usage.cache_write_tokens, usage.cost_micros, usage.seconds,
            )  # fmt: skip
            return id

        await once_only(tx, actor, "sessions.usage", once, record)
        return await jobs_store.list_job_usage(tx, job["id"])


def _require_open(job: Row) -> None:
    if job["status"] in TERMINAL:
        raise Conflict(
            f"This session is over: its job is {job['status']}.",
            code="external_over",
            hint="Open a new session where the agent is to go on.",
        )


def not_external() -> Conflict:
    return Conflict(
        "The agent of this session does not run elsewhere.", code="not_external", hint="Open one with `kind: external`."
    )


T = TypeVar("T")
OVERTAKEN = frozenset({"policy_changed", "grant_refused", "gates_changed", "call_changed"})
"""What was decided by does not hold any more: it is decided again."""
RETRY = "retry"
TRIES = 5
"""Under the locks of the session: what still changes there, such as policies, changes seldom."""
_turns: WeakValueDictionary[UUID, asyncio.Lock] = WeakValueDictionary()
"""Of those who wait for the same session in this process one has a connection meanwhile, so that others have some too."""


async def retry_under_session_lock(
    db: Database, actor: Actor, act: Callable[[Database], Awaitable[T]], *, session: UUID | None = None,
    call: UUID | None = None,
) -> T:  # fmt: skip
    """Without a lock at first. Who was overtaken acts under the locks of the session, where nobody overtakes: of any number of
    requests at once each gets its answer. ``session`` or one of its calls says which."""
    try:
        return await _once(act, db)
    except Conflict as error:
        if error.code != RETRY:
            raise
    if session is None:
        session = (await read_call(db, actor, require_found(call, "call"))).call.session_id
    async with _turns.setdefault(session, asyncio.Lock()):
        for tries in range(TRIES):
            try:
                return await _under_locks(db, actor, session, act)
            except NotAtHand as missing:
                await missing.load(db)
            except Conflict as error:
                if error.code != RETRY or tries == TRIES - 1:
                    raise
    raise Conflict("What governs this session does not stay loaded.", code=RETRY, hint="Send it again.")


async def _once(act: Callable[[Database], Awaitable[T]], db: Database) -> T:
    try:
        return await act(db)
    except AlreadyExists as error:
        # The same key, or the same question, at the same moment: with the next try it is there.
        raise Conflict("Another request asks the same.", code=RETRY) from error
    except Conflict as error:
        if error.code in OVERTAKEN:
            raise Conflict(error.message, code=RETRY, hint="Send it again.") from error
        raise


async def _under_locks(db: Database, actor: Actor, session: UUID, act: Callable[[Database], Awaitable[T]]) -> T:
    async with db.transaction(actor.org_id) as tx:
        await lock_session(tx, actor, session)
        try:
            return await _once(act, NestedDatabase(db, tx))
        except CortexError as error:
            # What it wrote before it was refused stays, as it does without locks.
            refusal = error
    raise refusal


async def lock_session(tx: Transaction, actor: Actor, id: UUID) -> Row:
    """The session's one job. Both are locked, the session before its job as everywhere: what is decided here may end it."""
    require_found(await sessions_store.lock_session(tx, id, call_sight(actor)), "session")
    job = await tx.row(queries.list_session_calls, id)
    if job is None:
        raise not_external()
    await calls_store.lock_asking(tx, job["id"], is_open=False)
    return require_found(await tx.row(queries.list_session_calls, id), "job")


async def read_session(tx: Transaction, id: UUID) -> Session:
    return require_found(await sessions_store.get_session(tx, id, None), "session")


def call_sight(actor: Actor) -> UUID | None:
    """The plane's own scheduler sees every call, and asks for no permission."""
    return None if actor.kind is ActorKind.SCHEDULER else actor.sees


async def read_call(db: Database, actor: Actor, id: UUID) -> StoredCall:
    return require_found(await calls_store.read_call(db, actor.org_id, id, call_sight(actor)), "call")


async def lock_call(tx: Transaction, actor: Actor, call: ExternalCall) -> tuple[ExternalCall, Row]:
    job = await calls_store.lock_asking(tx, call.job_id, is_open=False)
    return require_found(await calls_store.get_call(tx, call.id, call_sight(actor)), "call").call, job


def shown_call(stored_call: StoredCall, sender: str | None) -> ExternalCall:
    return advised(stored_call.call, is_sender=sender is not None and stored_call.sender == sender)


def doubt_hash_of(tool: str, input_hash: str, scope: str = "") -> bytes:
    """Names what was asked for, whatever its key. ``scope``: what else tells two acts apart."""
    parts = [tool, input_hash, scope] if scope else [tool, input_hash]
    return hashlib.sha256("\n".join(parts).encode("utf-8", "backslashreplace")).digest()


async def call_context(
    db: Database, actor: Actor, session_id: UUID, key: str | None, tool: str, input_hash: str,
    *, asked_by: UUID | None = None, acts: bool = False, runner: str | None = None, request_hash: bytes | None = None,
    digest: str | None = None,
) -> CallContext:  # fmt: skip
    """``asked_by``: the identity that asked for the call before, if that was another one. ``acts``: refused where an atlas of the session
    keeps the actor out. ``runner``, ``request_hash``, ``digest`` of its tool: of a request that is an earlier call where nobody knows what became of that one."""
    acts_as = (actor.key_id, actor.user_account_id) if acts else None
    try:
        sees = call_sight(actor)
        context = await calls_store.call_context(
            db, actor.org_id, session_id, sees, key, tool, input_hash, acts_as, runner, request_hash, digest
        )
    except LookupError as error:
        raise not_external() from error
    return replace(require_found(context, "session"), askers=sorted({actor.identity, asked_by or actor.identity}))
