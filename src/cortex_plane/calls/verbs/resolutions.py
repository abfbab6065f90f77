"""Resolutions of spec 5: an agent elsewhere asks what it may do, executes under the answer, and answers what gates ask."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import (
    MAX_ACTIONS,
    AnswerDraft,
    AnswerReceipt,
    CallDraft,
    ExternalCall,
    OutcomeReceipt,
    ReportDraft,
    RequestedCall,
    Resolution,
    ResolutionRequest,
)
from cortex_plane.calls.rules import permissions as rules
from cortex_plane.calls.rules.pipeline import CallVerdict, gate_call
from cortex_plane.calls.store import CallContext, StoredResolution, queries
from cortex_plane.calls.verbs import calls, outcomes
from cortex_plane.calls.verbs.authorization import cover_external, policy_verdict
from cortex_plane.calls.verbs.external import call_context, lock_session, retry_under_session_lock
from cortex_plane.calls.verbs.permissions import known_risks, let_others_run
from cortex_plane.db.database import Database, one
from cortex_plane.gates.model.gates import Answered, GatedCall, GateInput, Shut, call_name
from cortex_plane.gates.rules.answers import AnswerTarget
from cortex_plane.gates.rules.session import GateSession, record_of
from cortex_plane.gates.verbs import session_gates
from cortex_plane.gates.verbs.answer_checks import StewardCallbacks, ask_stewards
from cortex_plane.gates.verbs.atlas_cache import book as atlas_book
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import Conflict, InvalidInput, NotFound
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.access import Actor, Fact, Permission
from cortex_plane.tenancy.verbs.frame import require_found, verb

_ASKED = "0" * 64
"""Stands for the digest of something that was only asked about."""
UNUSED_KEPT = timedelta(days=1)
"""How long one is kept after it expired, where nothing was executed under it."""
USED_KEPT = timedelta(days=30)
"""How long it can be read where something was; which calls those were is kept."""
MAX_LIVE = 1000
"""Resolutions of one session that hold at the same time."""
FORGOTTEN_AT_ONCE = 1000


@verb(Permission.JOB_SUBMIT)
async def resolve(db: Database, actor: Actor, session_id: UUID, request: ResolutionRequest) -> Resolution:
    """What may be done now, and what must be known and answered first. Gates and policies, and the stricter of the two."""
    rules.check_action(request.action)
    return await retry_under_session_lock(
        db, actor, lambda db: _resolve(db, actor, session_id, request), session=session_id
    )


async def _resolve(db: Database, actor: Actor, session_id: UUID, request: ResolutionRequest) -> Resolution:
    call = _requested_call(request)
    context = await agent_context(db, actor, session_id, call.name, call.input_hash)
    call = call.with_risk(context.known_risk)
    goal = hashlib.sha256(request.goal.encode()).digest() if request.goal else None
    gates = await session_gates.of_agent(
        db, context.org_id, context.bound, context.at, await _new_goal(db, context, request.goal, goal)
    )
    if gates is not None and request.request is not None:
        gates.request([request.request] if isinstance(request.request, str) else request.request)
    if request.action is not None:
        looks = [await _look_at_call(db, actor, context, gates, call)]
        limits = rules.limits_of(gates.atlases, looks) if gates is not None else []
    else:
        looks = await _look_at_all(db, context, gates, call)
        limits = rules.limits_of_all(gates.atlases, gates.state, looks, context.at) if gates is not None else []
    answers = [answer for answer, _ in looks]
    ends = context.at + timedelta(seconds=request.ttl_seconds)
    allowed, reasons = rules.split_answers(answers)
    resolution = Resolution(
        id=new_id(), session_id=session_id, trace_id=new_id(), decision=rules.decided(answers),
        constraints=[rules.time_window(ends), *limits], expires_at=ends,
        allowed_actions=allowed, denied_actions=reasons,
        contexts=rules.block_list(gates.atlases, gates.state) if gates is not None else [],
        questions=gates.questions(gates.state.open) if gates is not None else [],
    )  # fmt: skip
    await _write_resolution(db, actor, context, gates, request, resolution, goal)
    return resolution


def _requested_call(request: ResolutionRequest) -> RequestedCall:
    arguments = canonical(request.arguments)
    return RequestedCall(
        id=new_id(), name=request.action or "", digest=_ASKED, arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(), read_only=False, risk=request.assumed_risk,
        declares_risk=request.risk is not None,
    )  # fmt: skip


async def _look_at_call(
    db: Database, actor: Actor, context: CallContext, gates: GateSession | None, call: RequestedCall
) -> rules.Look:
    """One call, as it would be made."""
    gated_call = gate_call(call)
    ruling = gates.judge(gated_call) if gates is not None else None
    asks = rules.asked_first(gates, gated_call, ruling)
    verdict = await policy_verdict(db, context, call, ruling, asks)
    verdict = (await cover_external(db, actor, context, call, CallVerdict(answer=verdict))).answer
    return rules.answered(call.name, verdict.decision, ruling, call.risk, asks), ruling


async def _look_at_all(
    db: Database, context: CallContext, gates: GateSession | None, call: RequestedCall
) -> list[rules.Look]:
    """Every action that an atlas or the agent's own settings name, whatever its arguments."""
    names = rules.action_names(context.skills, gates)[:MAX_ACTIONS]
    if not names:
        raise InvalidInput(
            "Neither an atlas nor the agent's settings name any action.",
            field="action",
            hint="Name the one that you want to know about in `action`.",
        )
    looks: list[rules.Look] = []
    risks = await known_risks(db, context.org_id, names)
    for number, action in enumerate(names):
        await let_others_run(number)
        action_call = replace(call, name=action, arguments=b"{}", input_hash="").with_risk(risks.get(action))
        gated_call = gate_call(action_call)
        ruling = gates.look(gated_call) if gates is not None else None
        asks = rules.asked_first(gates, gated_call, ruling)
        verdict = await policy_verdict(db, context, action_call, ruling, asks)
        looks.append((rules.answered(action, verdict.decision, ruling, action_call.risk, asks), ruling))
    return looks


async def _new_goal(db: Database, context: CallContext, goal: str | None, digest: bytes | None) -> tuple[str, ...]:
    """A goal is heard once in a session: whoever answered what its keywords asked names it again, and goes on."""
    if goal is None or digest is None or context.bound is None:
        return ()
    async with db.transaction(context.org_id) as tx:
        return () if await tx.value(queries.list_messages_heard, context.session_id, digest) else (goal,)


async def _write_resolution(
    db: Database, actor: Actor, context: CallContext, gates: GateSession | None, request: ResolutionRequest, resolution: Resolution,
    goal: bytes | None,
) -> None:  # fmt: skip
    pins: list[dict[str, Any]] = context.bound["atlases"] if context.bound is not None else []
    fact = Fact.of(
        actor, "resolution_given", resolution=str(resolution.id), trace_id=str(resolution.trace_id), decision=resolution.decision,
        tool=request.action, allowed=len(resolution.allowed_actions), denied=len(resolution.denied_actions),
        atlases=[pin["digest"] for pin in pins], expires_at=resolution.expires_at.isoformat(),
    )  # fmt: skip
    question = {"action": request.action, "input_hash": hashlib.sha256(canonical(request.arguments)).hexdigest()}
    async with db.transaction(actor.org_id) as tx:
        await calls_store.lock_asking(tx, context.job_id, is_open=True)
        if await tx.value(queries.count_live, context.session_id, MAX_LIVE) >= MAX_LIVE:
            raise Conflict(
                f"{MAX_LIVE} resolutions of this session hold already.",
                code="too_many_resolutions",
                hint="Execute under one of them, wait until some expire, or resolve with a shorter `ttl_seconds`.",
            )
        await calls_store.insert_resolution(
            tx, rules.by_reference(resolution), actor.identity, goal, question, pins, context.at
        )
        record = record_of(actor, gates.changes(), resolution.trace_id) if gates is not None else None
        await session_gates.write(tx, context.session_id, context.job_id, record, [fact])


@verb(Permission.JOB_READ)
async def get_resolution(db: Database, actor: Actor, id: UUID) -> Resolution:
    """As it was given: for whoever asked, and for those who see the whole org."""
    resolution = await _kept(db, actor, id, None if actor.sees is None else actor.identity)
    answer = require_found(resolution.answer, "resolution")
    if not resolution.atlases:
        return answer
    return rules.in_full(await atlas_book.at(db, actor.org_id, resolution.atlases), answer)


async def _kept(db: Database, actor: Actor, id: UUID, asker: UUID | None) -> StoredResolution:
    async with db.transaction(actor.org_id) as tx:
        return require_found(one(StoredResolution, await tx.row(queries.get_resolution, id, asker)), "resolution")


@verb(Permission.JOB_SUBMIT)
async def execute_resolution(db: Database, actor: Actor, id: UUID, draft: CallDraft) -> ExternalCall:
    """Ask for a call that the resolution covers, and begin it where that is allowed: only then is anything used up."""
    resolution = await _kept(db, actor, id, actor.identity)

    async def check(db: Database, context: CallContext, call: RequestedCall) -> None:
        if context.earlier is not None:
            await _require_own(db, actor, resolution, context.earlier)
        else:
            await _require_covered(db, actor, resolution, context, call)

    under = calls.ResolutionScope(resolution.id, resolution.expires_at, check)
    return await calls.authorize_in(db, actor, resolution.session_id, replace(draft, dispatch=True), under)


async def _require_own(db: Database, actor: Actor, resolution: StoredResolution, call_id: UUID) -> None:
    """A key that was used before goes on with its call under the same resolution, and under no other."""
    async with db.transaction(actor.org_id) as tx:
        under = await tx.value(queries.list_resolved_calls, call_id)
    if under != resolution.id:
        raise Conflict(
            "This key stands for a call that was not executed under this resolution.",
            code="call_key_reused",
            hint="Send a new key with a new call, or go on with the call that the key stands for.",
        )


async def _require_covered(
    db: Database, actor: Actor, resolution: StoredResolution, context: CallContext, call: RequestedCall
) -> None:
    if context.at >= resolution.expires_at:
        raise calls.expired()
    now = context.bound["atlases"] if context.bound is not None else []
    if {pin["digest"] for pin in now} != {pin["digest"] for pin in resolution.atlases}:
        raise Conflict(
            "The session is bound to other atlases than when this was resolved.",
            code="resolution_outdated",
            hint="Resolve again, and execute under the new one.",
        )
    why = _not_covered(resolution, call)
    if why is None:
        return
    async with db.transaction(actor.org_id) as tx:
        fact = Fact.of(
            actor, "resolution_refused", resolution=str(resolution.id), trace_id=str(resolution.trace_id), tool=call.name,
            input_hash=call.input_hash, reason=why,
        )  # fmt: skip
        await session_gates.write(tx, resolution.session_id, None, None, [fact])
    raise Conflict(
        f"The resolution does not allow `{call.name}`: {why}.",
        code="action_not_resolved",
        hint="Resolve again for this action with its arguments, or go another way.",
    )


def _not_covered(resolution: StoredResolution, call: RequestedCall) -> str | None:
    if resolution.answer is None:
        return "it was forgotten"
    if any(each.action == call.name for each in resolution.answer.allowed_actions):
        if resolution.request["action"] is not None and resolution.request["input_hash"] != call.input_hash:
            return "it was asked about with other arguments"
        return None
    reasons = [each.reason for each in resolution.answer.denied_actions if each.action == call.name]
    return reasons[0] or "it was denied" if reasons else "it was not asked about"


@verb(Permission.JOB_SUBMIT)
async def report_resolution(db: Database, actor: Actor, id: UUID, draft: ReportDraft) -> OutcomeReceipt:
    """What became of a call that was executed under it. That counts also after it expired: it happened."""
    resolution = await _kept(db, actor, id, actor.identity)
    async with db.transaction(actor.org_id) as tx:
        under = await tx.value(queries.list_resolved_calls, draft.call)
    if under != resolution.id:
        raise NotFound(
            "There is no such call under this resolution.",
            code="call_not_found",
            hint="Report calls that were executed under it; for others there is `POST /v1/calls/{id}/outcome`.",
        )
    return await outcomes.settle_call(db, actor, draft.call, draft.outcome)


async def forget_resolutions(db: Database) -> None:
    """Those under which nothing was executed; of the others, what they said."""
    while await calls_store.forget_resolutions(db, UNUSED_KEPT, USED_KEPT, FORGOTTEN_AT_ONCE) >= FORGOTTEN_AT_ONCE:
        pass


class NotChecked(Exception):
    """Nobody is asked about an answer while something is locked: whoever decides begins again with what they said."""

    def __init__(self, target: AnswerTarget) -> None:
        super().__init__("a steward has not looked at these answers yet")
        self.target = target


@verb(Permission.JOB_SUBMIT)
async def give_answers(
    db: Database, actor: Actor, session_id: UUID, draft: AnswerDraft, callbacks: StewardCallbacks | None = None
) -> AnswerReceipt:
    """What holds counts from the next call on. A wrong answer is one try less; a gate that ran out of them stays shut."""
    faults: dict[str, dict[str, str | None]] = {}
    while True:
        try:
            return await retry_under_session_lock(
                db, actor, lambda db: _give_answers(db, actor, session_id, draft, faults), session=session_id
            )
        except NotChecked as missing:
            if missing.target.gate is not None:
                seen = await ask_stewards(callbacks, actor.org_id, session_id, missing.target, draft.answers)
                faults[missing.target.gate.key] = seen


async def _give_answers(
    db: Database, actor: Actor, session_id: UUID, draft: AnswerDraft, faults: Mapping[str, dict[str, str | None]]
) -> AnswerReceipt:
    """``faults``: what stewards said of the answers, by gate and question."""
    context = await agent_context(db, actor, session_id)
    gates = await session_gates.of_agent(db, context.org_id, context.bound, context.at)
    if gates is None:
        raise Conflict(
            "No atlas governs this session, so no gate asks anything.",
            code="not_governed",
            hint="Go on without an answer.",
        )
    which = gates.answer_target(draft.gate, draft.call)
    if which.gate is None:
        receipt = _earlier_pass(gates, draft)
        if receipt is None:
            raise Conflict(
                which.error,
                code="gate_not_waiting",
                hint="`GET /v1/sessions/{id}/permissions` shows what waits for an answer.",
            )
        return receipt
    if which.gate.key not in faults and any(question.validation.connection for question in which.gate.questions):
        raise NotChecked(which)
    shut_gate, waiting = gates.state.ended, len(gates.state.open)
    seen = gates.record_answer(which, draft.answers, faults.get(which.gate.key, {}))
    await _write_answers(db, actor, context, gates, shut_gate)
    # Whatever waits still takes answers; the same gate for another call does not count.
    return _answers_receipt(gates, seen, shut=not seen.valid and len(gates.state.open) < waiting)


async def agent_context(
    db: Database, actor: Actor, session_id: UUID, tool: str = "", input_hash: str = ""
) -> CallContext:
    try:
        return await call_context(db, actor, session_id, None, tool, input_hash, acts=True)
    except Conflict as error:
        if error.code != "not_external":
            raise
        raise Conflict(
            "A worker runs the agent of this session: its gates are answered by the agent itself.",
            code="not_external",
            hint="Watch it with `cortex job watch`; for an agent that runs elsewhere open a session with `kind: external`.",
        ) from None


def _earlier_pass(gates: GateSession, draft: AnswerDraft) -> AnswerReceipt | None:
    """Whoever repeats an answer that was accepted hears the same again."""
    for gate in gates.atlases.named(draft.gate):
        passes = [entry for entry in gates.state.passes if entry.gate == gate.key]
        names = [call_name(GatedCall(action=own.action, arguments={}, input_hash=own.input_hash)) for own in passes]
        is_passed = bool(passes) or (gate.key in gates.state.passed and not gate.of_a_call)
        if draft.call in names or (draft.call is None and is_passed):
            waiting = gates.questions(gates.state.open)
            return AnswerReceipt(gate=gate.gate_id, passed=True, next="It is passed already. Go on.", questions=waiting)
    return None


async def _write_answers(
    db: Database, actor: Actor, context: CallContext, gates: GateSession, before: Shut | None
) -> None:
    """Where a gate of the session is shut by it, nothing can happen there any more: its job fails, with the reason."""
    over = gates.state.ended if before is None else None
    async with db.transaction(actor.org_id) as tx:
        if over is not None:
            await lock_session(tx, actor, context.session_id)
        await calls_store.lock_asking(tx, context.job_id, is_open=True)
        if over is not None:
            reason = f"The gate `{over.gate}` is shut: {over.reason}"
            await steering.fail_job(tx, actor, context.session_id, context.job_id, reason, ends_session=True)
            gates.boundary(GateInput(now=context.at, ends=True))
        await session_gates.write(tx, context.session_id, context.job_id, record_of(actor, gates.changes()))


def _answers_receipt(gates: GateSession, seen: Answered, *, shut: bool) -> AnswerReceipt:
    reply = seen.told
    return AnswerReceipt(
        gate=seen.gate or "",
        passed=seen.valid,
        next=str(reply.get("next", "")),
        faults=dict(reply.get("faults", {})),
        warnings=list(reply.get("warning", ())),
        opened_capabilities=list(reply.get("opened_capabilities", ())),
        opened_actions=list(reply.get("opened_actions", ())),
        questions=gates.questions(gates.state.open),
        shut=shut,
    )
