"""The gates of a session outside the worker: loaded atlases, records of what gates did, and calls that ended."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

import structlog

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.store import CallContext
from cortex_plane.db import database
from cortex_plane.db.database import Database, Transaction
from cortex_plane.gates import store as gates_store
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.model.gates import (
    FOR_ONE_CALL,
    MAX_MISSED,
    Answered,
    GatedCall,
    GateInput,
    GateState,
    Open,
    Pass,
    Ruling,
    Trace,
    UnseenCall,
    kept_state,
    skipped,
    state_of,
)
from cortex_plane.gates.rules.answers import AnswerTarget, answer
from cortex_plane.gates.rules.effects import EvaluationRun, RanCall, notices
from cortex_plane.gates.rules.evaluation import at_boundary, judge, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import asked_of_all
from cortex_plane.gates.verbs import atlas_cache
from cortex_plane.gates.verbs.atlas_cache import ATLAS_CORRUPT, Pins, book
from cortex_plane.jobs.model.journal import GateClosed
from cortex_plane.kernel.errors import Conflict, CortexError
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.proof import store as proof_store
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor
from cortex_plane.tenancy.verbs.frame import require_found

T = TypeVar("T")

log = structlog.get_logger()

TRIES = 10
"""How often gates that changed meanwhile are read anew before the caller is told to try again."""
NOT_LOADED = "is code that only workers load: an agent that runs elsewhere cannot pass it"


@dataclass(kw_only=True, slots=True)
class ExternalGates:
    """One look at the gates of a session."""

    atlases: CompiledAtlases
    read: GateState
    """As the row has it."""
    state: GateState
    revision: int
    now: datetime
    traces: list[Trace] = field(default_factory=list)
    minutes: dict[str, Any] = field(default_factory=dict)
    """Of atlases whose steward limits how many calls run in a minute; only where one is sent."""
    ran: list[RanCall] = field(default_factory=list)
    trace_id: UUID | None = None
    """Names the request on the trail, where somebody may ask for it later."""

    # Looking ---------------------------------------------------------------------------------------------------

    def boundary(
        self,
        *,
        inputs: tuple[str, ...] = (),
        finished: tuple[str, ...] = (),
        errors: tuple[str, ...] = (),
        ends: bool = False,
    ) -> None:
        """What fired since the last look: the start, what was said, what came round, what happened."""
        # Of an atlas that the session meets now: nobody here can ask these, so what they forbid is forbidden.
        unasked = [each for each in self.atlases.restricting_custom if each.atlas_id not in self.state.fired]
        moment = GateInput(
            now=self.now, inputs=inputs, finished=finished, errors=errors, ends=ends,
            unknown=frozenset(gate.key for gate in unasked),
        )  # fmt: skip
        seen = at_boundary(self.atlases, self.state, moment)
        self.state = seen.state
        self.traces += seen.traces
        self.traces += [
            skipped(gate, f"the trigger `{gate.trigger.trigger_id}` is code that only workers load")
            for gate in unasked
        ]

    def requested(self, what: str) -> None:
        """The agent asks for what its stewards wrote down."""
        seen = requested(self.atlases, self.state, what, self.now)
        self.state = seen.state
        self.traces += seen.traces

    def judged(self, call: GatedCall) -> Ruling:
        """What the gates say of a call that was not sent yet."""
        ruling = self.unloaded(call) or judge(self.atlases, self.state, call, self.now)
        self.state = ruling.state
        self.traces += ruling.traces
        return ruling

    def judged_again(self, call: GatedCall) -> Ruling:
        """Of one that was sent before: it passed its gates and was counted then, and what is forbidden now is forbidden."""
        was = self.state
        found = judge(self.atlases, replace(was, spent={}), call, self.now)
        if found.asks:
            passes = [
                Pass(gate=each.gate, action=call.action, input_hash=call.input_hash)
                for each in found.asks
                if self.atlases.gates[each.gate].trigger.type in FOR_ONE_CALL
            ]
            passed = replace(was, spent={}, passes=(*was.passes, *passes))
            found = judge(self.atlases, passed, call, self.now)
        if found.asks:
            # A capability was locked since: that is asked about anew, and must be remembered.
            self.state = replace(found.state, passes=was.passes, spent=was.spent)
            self.traces += found.traces
        elif found.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            self.traces += found.traces
        return self.unloaded(call) or replace(found, state=self.state, traces=())

    def unloaded(self, call: GatedCall) -> Ruling | None:
        """A blocking gate whose trigger nobody here can ask stays shut."""
        for gate in self.atlases.blocking_custom[:1]:
            reason = f"the trigger `{gate.trigger.trigger_id}` of the gate `{gate.gate_id}` {NOT_LOADED}"
            work = EvaluationRun(self.atlases, self.state, self.now)
            work.blocked(gate, reason, call.action)
            return Ruling(
                verdict=PolicyVerdict.DENY, rule=f"gate:{gate.key}", reason=reason, state=self.state,
                risk=self.atlases.risk_of(call.action, call.risk), traces=tuple(work.traces),
            )  # fmt: skip
        return None

    @property
    def waiting(self) -> tuple[Open, ...]:
        return self.state.open

    def questions(self, waiting: Sequence[Open]) -> list[dict[str, Any]]:
        return asked_of_all(self.atlases, waiting)

    def shown(self, call: GatedCall, people: Sequence[Gate]) -> None:
        """People are asked about exactly this call, with what is written now: these gates stand on their card."""
        self.state = shown(self.atlases, self.state, call, people, self.now).state

    # Going on --------------------------------------------------------------------------------------------------

    def sent(self, call: GatedCall, call_id: UUID) -> None:
        """The call is sent with what is written now: what let it through is used up."""
        seen = ran(self.atlases, self.state, call, self.now)
        self.state = seen.state
        self.traces += seen.traces
        self.minutes = atlas_cache.minutes_of(self.atlases)
        self.ran.append(RanCall(action=call.action, risk=call.risk, call_id=str(call_id)))

    def answered(self, found: AnswerTarget, answers: Mapping[str, Any]) -> Answered:
        custom: dict[str, str | None] = {
            each.question_id: f"its validator `{each.validation.custom_validator}` {NOT_LOADED}"
            for each in (found.gate.questions if found.gate is not None else ())
            if each.validation.custom_validator is not None
        }
        seen = answer(self.atlases, self.state, found, answers, custom, self.now)
        self.state = seen.state
        self.traces += seen.traces
        return seen

    # Writing ---------------------------------------------------------------------------------------------------

    @property
    def written(self) -> dict[str, Any]:
        """What `record_gates` takes; empty where nothing changed."""
        written: dict[str, Any] = {}
        if self.state != self.read:
            written |= {"revision": self.revision, "state": kept_state(self.state)}
        if self.minutes:
            written["minutes"] = self.minutes
        told = notices(self.atlases, self.traces, self.ran)
        return written | ({"notices": told} if told else {})

    def facts(self, actor: Actor) -> list[Fact]:
        named = {"trace_id": str(self.trace_id)} if self.trace_id is not None else {}
        return [Fact.of(actor, trace.type, **trace.payload, **named) for trace in self.traces]

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return [(trace.type, trace.payload) for trace in self.traces]


async def of_session(
    db: Database, org_id: UUID, bound: dict[str, Any] | None, now: datetime
) -> ExternalGates | None:
    """None where no atlas governs it: that costs nothing."""
    if bound is None:
        return None
    return _look(await _loaded(db, org_id, bound["atlases"]), bound, now)


async def _loaded(db: Database, org_id: UUID, pins: Pins) -> CompiledAtlases:
    return await database.at_hand(db, book.known(org_id, pins), lambda db: book.at(db, org_id, pins))


def _look(atlases: CompiledAtlases, bound: dict[str, Any], now: datetime) -> ExternalGates:
    state = state_of(bound["state"])
    return ExternalGates(atlases=atlases, read=state, state=state, revision=bound["revision"], now=now)


async def of_agent(db: Database, given: CallContext, *, inputs: tuple[str, ...] = ()) -> ExternalGates | None:
    """For what an agent asks; with whatever fired since the last look."""
    looked = await of_session(db, given.org_id, given.bound, given.at)
    if looked is None:
        return None
    looked.boundary(inputs=inputs)
    return looked


async def under_lock(tx: Transaction, session_id: UUID) -> ExternalGates | None:
    """For a verb that has the lock of the session's job: nobody overtakes it. Nothing is loaded meanwhile: see `at_hand`."""
    bound, now = await gates_store.bound_atlases(tx, session_id)
    if bound is None:
        return None
    atlases = book.known(tx.org, bound["atlases"])
    if atlases is None:
        raise NotLoaded(bound["atlases"])
    return _look(atlases, bound, now)


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


async def with_gate_record(
    db: Database, org_id: UUID, act: Callable[[CortexError | None], Awaitable[T]]
) -> T:
    """As `at_hand`, for what must be recorded in any case: an atlas that cannot be read keeps nobody from deciding.

    ``act`` is told why its gates cannot look on, and passes it to `ended`.
    """
    try:
        return await with_loaded_atlases(db, org_id, lambda: act(None))
    except Conflict as error:
        if error.code != ATLAS_CORRUPT:
            raise
        log.error("gates cannot look on", org_id=str(org_id), error=error.message)
        return await act(error)


async def begin(tx: Transaction, actor: Actor, session_id: UUID) -> None:
    """A session is opened, with its job: what fires at its start fires in the same commit."""
    looked = await under_lock(tx, session_id)
    if looked is not None:
        looked.boundary()
        job_id = require_found(await calls_store.list_session_calls(tx, session_id), "job")["id"]
        await write(tx, actor, session_id, job_id, looked)


@dataclass(frozen=True, slots=True)
class GateRecord:
    """What gates tell of something, for whoever appends it."""

    facts: Sequence[Fact] = ()
    events: Sequence[tuple[str, dict[str, Any]]] = ()
    written: dict[str, Any] = field(default_factory=dict)
    """What they remember of it, for `record_gates`."""


async def record_ended_calls(
    tx: Transaction, actor: Actor, session_id: UUID, calls: Sequence[UnseenCall], unread: CortexError | None = None
) -> GateRecord:  # fmt: skip
    """Calls are over, whoever said so, under the lock of their job and before anything is told: what fires then is remembered
    here. ``unread``: why nobody can look now; then they are kept for whoever looks next."""
    bound, _ = await gates_store.bound_atlases(tx, session_id)
    if bound is None or not calls:
        return GateRecord()
    await gates_store.lock_gates(tx, session_id)
    if unread is not None:
        bound, _ = await gates_store.bound_atlases(tx, session_id)
        missed = _missed(actor, bound or {}, calls, unread)
        await gates_store.record_gates(tx, session_id, missed.written)
        return missed
    looked = await under_lock(tx, session_id)
    if looked is None:
        return GateRecord()
    found = _after(actor, looked, calls)
    if found.written:
        await gates_store.record_gates(tx, session_id, found.written)
    return found


async def after(
    db: Database, actor: Actor, bound: dict[str, Any], now: datetime, calls: Sequence[UnseenCall]
) -> GateRecord:  # fmt: skip
    """As `ended`, for a write that takes its locks itself."""
    try:
        looked = await of_session(db, actor.org_id, bound, now)
    except Conflict as error:
        if error.code != ATLAS_CORRUPT:
            raise
        log.error("gates cannot look on", org_id=str(actor.org_id), error=error.message)
        return _missed(actor, bound, calls, error)
    return _after(actor, looked, calls) if looked is not None else GateRecord()


def _after(actor: Actor, looked: ExternalGates, calls: Sequence[UnseenCall]) -> GateRecord:
    looked.boundary(
        finished=tuple(each.action for each in calls),
        errors=tuple(each.error for each in calls if each.error is not None),
    )
    return GateRecord(looked.facts(actor), looked.events, looked.written)


def _missed(
    actor: Actor, bound: Mapping[str, Any], calls: Sequence[UnseenCall], why: CortexError
) -> GateRecord:
    """What happened, for whoever looks next."""
    state = state_of(bound.get("state"))
    missed = replace(state, missed=(*state.missed, *calls)[-MAX_MISSED:])
    written = {"revision": bound.get("revision", 0), "state": kept_state(missed)}
    return GateRecord([_unread(actor, why, calls)], written=written)


def _unread(actor: Actor, why: CortexError, calls: Sequence[UnseenCall] = ()) -> Fact:
    return Fact.of(actor, "gates_unread", calls=[each.action for each in calls], reason=why.message)


async def end(
    tx: Transaction, actor: Actor, session_id: UUID, job_id: UUID | None, unread: CortexError | None = None
) -> None:
    """A session ends, under the lock of its job: what fires then can only be told. ``unread``: why nobody can look."""
    if unread is not None:
        await proof_store.append_to_session(tx, session_id, [_unread(actor, unread)], job=job_id)
        return
    looked = await under_lock(tx, session_id)
    if looked is not None:
        looked.boundary(ends=True)
        await write(tx, actor, session_id, job_id, looked)


async def write(
    tx: Transaction,
    actor: Actor,
    session_id: UUID,
    job_id: UUID | None,
    looked: ExternalGates,
    facts: Sequence[Fact] = (),
    events: Sequence[tuple[str, UUID | None, dict[str, Any]]] = (),
) -> None:
    """Under the lock of the job, as the last statements of a verb: what gates remember, and what is told of it."""
    written = looked.written
    if written:
        await gates_store.record_gates(tx, session_id, written)
    told = [*((kind, job_id, data) for kind, data in looked.events), *events]
    if facts or told or looked.traces:
        await proof_store.append_to_session(tx, session_id, [*looked.facts(actor), *facts], told, job=job_id)


def closed(looked: ExternalGates, tool: str, asks: Sequence[Open]) -> GateClosed:
    """The questions, for whoever called."""
    names = ", ".join(f"`{looked.atlases.gates[each.gate].gate_id}`" for each in asks)
    before = f"before `{tool}` runs" if asks[0].call else "before anything else"
    return GateClosed(
        f"The gate {names} asks {before}; the call was not made.",
        hint="Answer with `POST /v1/sessions/{id}/answers`, then send the same call again.",
        questions=looked.questions(asks),
    )


def not_waiting(found: AnswerTarget) -> Conflict:
    return Conflict(
        found.error,
        code="gate_not_waiting",
        hint="`GET /v1/sessions/{id}/permissions` shows what waits for an answer.",
    )
