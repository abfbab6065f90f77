"""The gates of a session outside the worker: loaded atlases, records of what gates did, and calls that ended."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog

from cortex_plane.db import database
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model.gates import GateInput, GateRecord, UnseenCall
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.session import GateSession, record_missed, record_of, unread_fact
from cortex_plane.gates.store import queries
from cortex_plane.gates.verbs.atlas_cache import ATLAS_CORRUPT, Pins, book
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.kernel.shares import searching
from cortex_plane.proof import store as proof_store
from cortex_plane.tenancy.model.access import Actor, Fact

T = TypeVar("T")

log = structlog.get_logger()

TRIES = 10
"""How often gates that changed meanwhile are read anew before the caller is told to try again."""


async def of_session(db: Database, org_id: UUID, bound: dict[str, Any] | None, now: datetime) -> GateSession | None:
    """None where no atlas governs it: that costs nothing."""
    if bound is None:
        return None
    return GateSession(await _loaded(db, org_id, bound["atlases"]), bound, lambda: now, loads_code=False)


async def _loaded(db: Database, org_id: UUID, pins: Pins) -> CompiledAtlases:
    return await database.at_hand(db, book.known(org_id, pins), lambda db: book.at(db, org_id, pins))


async def of_agent(
    db: Database, org_id: UUID, bound: dict[str, Any] | None, now: datetime, inputs: tuple[str, ...] = ()
) -> GateSession | None:
    """For what an agent asks; with whatever fired since the last look."""
    gates = await of_session(db, org_id, bound, now)
    if gates is None:
        return None
    searched_ms = await search_texts(gates.atlases, inputs)
    gates.boundary(GateInput(now=now, inputs=inputs), searched_ms)
    gates.begin_response()
    return gates


async def search_texts(atlases: CompiledAtlases, texts: Sequence[str]) -> float:
    """Search long texts for keywords in a thread; the milliseconds that it took. The evaluation that follows uses what was found."""
    keywords, seconds = atlases.keywords, 0.0
    for text in texts:
        if not keywords.is_quick(text):
            start = time.monotonic()
            await searching.run(keywords.find, text)
            seconds += time.monotonic() - start
    return 1000 * seconds


async def under_lock(tx: Transaction, session_id: UUID) -> GateSession | None:
    """For a verb that has the lock of the session's job: nobody overtakes it. Nothing is loaded meanwhile: see `at_hand`."""
    bound, now = await gates_store.bound_atlases(tx, session_id)
    if bound is None:
        return None
    atlases = book.known(tx.org, bound["atlases"])
    if atlases is None:
        raise NotLoaded(bound["atlases"])
    return GateSession(atlases, bound, lambda: now, loads_code=False)


class NotLoaded(Exception):
    """Within a transaction nothing is compiled: it ends, these atlases are loaded, and it begins again."""

    def __init__(self, pins: Pins) -> None:
        super().__init__("the atlases of this session are not loaded")
        self.pins = pins


async def with_loaded_atlases(db: Database, org_id: UUID, act: Callable[[], Awaitable[T]]) -> T:
    """For a verb with `under_lock` in its transaction. A session that nothing governs pays nothing for it."""
    for _ in range(TRIES):
        try:
            return await act()
        except NotLoaded as missing:
            await _loaded(db, org_id, missing.pins)
    raise Conflict("The atlases of this session do not stay loaded.", code="retry", hint="Send it again.")


async def with_gate_record(db: Database, org_id: UUID, act: Callable[[CortexError | None], Awaitable[T]]) -> T:
    """As `with_loaded_atlases`, for what must be recorded in any case: an atlas that cannot be read keeps nobody from
    deciding. ``act`` gets the reason why its gates cannot look on."""
    try:
        return await with_loaded_atlases(db, org_id, lambda: act(None))
    except Conflict as error:
        if error.code != ATLAS_CORRUPT:
            raise
        log.error("gates cannot look on", org_id=str(org_id), error=error.message)
        return await act(error)


async def begin(tx: Transaction, actor: Actor, session_id: UUID, job_id: UUID) -> None:
    """A session is opened, with its job: what fires at its start fires in the same commit."""
    if (gates := await under_lock(tx, session_id)) is not None:
        gates.boundary(GateInput(now=gates.now()))
        await write(tx, session_id, job_id, record_of(actor, gates.changes()))


async def record_ended_call(
    tx: Transaction, actor: Actor, session_id: UUID, action: str, error: str | None, unread: CortexError | None = None
) -> GateRecord:
    """A call is over, whoever said so, under the lock of its job and before anything is told: what fires then is remembered
    here. ``unread``: why nobody can look now; then it is kept for whoever looks next."""
    bound, _ = await gates_store.bound_atlases(tx, session_id)
    if bound is None:
        return GateRecord()
    calls = [UnseenCall(action=action, error=error)]
    await tx.rows(queries.lock_gates, tx.org, session_id)
    if unread is not None:
        bound, _ = await gates_store.bound_atlases(tx, session_id)
        record = record_missed(actor, bound or {}, calls, unread)
        await gates_store.record_gates(tx, session_id, record.written)
        return record
    gates = await under_lock(tx, session_id)
    record = gates.record_ends(actor, calls) if gates is not None else GateRecord()
    if record.written:
        await gates_store.record_gates(tx, session_id, record.written)
    return record


async def after(
    db: Database, actor: Actor, bound: dict[str, Any], now: datetime, calls: Sequence[UnseenCall]
) -> GateRecord:  # fmt: skip
    """As `record_ended_call`, for a write that takes its locks itself."""

    async def act(unread: CortexError | None) -> GateRecord:
        if unread is not None:
            return record_missed(actor, bound, calls, unread)
        gates = await of_session(db, actor.org_id, bound, now)
        return gates.record_ends(actor, calls) if gates is not None else GateRecord()

    return await with_gate_record(db, actor.org_id, act)


async def end(
    tx: Transaction, actor: Actor, session_id: UUID, job_id: UUID | None, unread: CortexError | None = None
) -> None:
    """A session ends, under the lock of its job: what fires then can only be told. ``unread``: why nobody can look."""
    if unread is not None:
        await proof_store.append_to_session(tx, session_id, [unread_fact(actor, unread)], job=job_id)
        return
    if (gates := await under_lock(tx, session_id)) is not None:
        gates.boundary(GateInput(now=gates.now(), ends=True))
        await write(tx, session_id, job_id, record_of(actor, gates.changes()))


async def write(
    tx: Transaction,
    session_id: UUID,
    job_id: UUID | None,
    record: GateRecord | None,
    facts: Sequence[Fact] = (),
    events: Sequence[tuple[str, dict[str, Any]]] = (),
) -> None:
    """Under the lock of the job, as the last statements of a verb: the gates' state, and the facts and events of the write."""
    record = record or GateRecord()
    if record.written:
        await gates_store.record_gates(tx, session_id, record.written)
    facts = [*record.facts, *facts]
    entries = [(kind, job_id, data) for kind, data in (*record.events, *events)]
    if facts or entries:
        await proof_store.append_to_session(tx, session_id, facts, entries, job=job_id)
