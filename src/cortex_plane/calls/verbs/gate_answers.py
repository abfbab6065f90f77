"""Answers of an agent that runs elsewhere to the questions of gates."""

from __future__ import annotations

from collections.abc import Mapping
from uuid import UUID

from cortex_plane.calls import store as calls_store
from cortex_plane.calls.model import AnswerDraft, AnswerReceipt
from cortex_plane.calls.store import CallContext
from cortex_plane.calls.verbs.context import call_context, lock_session, retry_under_session_lock
from cortex_plane.db.database import Database
from cortex_plane.gates.model.gates import Answered, GatedCall, GateInput, Shut, call_name
from cortex_plane.gates.rules.answers import AnswerTarget
from cortex_plane.gates.rules.session import GateSession, record_of
from cortex_plane.gates.verbs import session_gates
from cortex_plane.gates.verbs.answer_checks import StewardCallbacks, ask_stewards
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.errors import Conflict
from cortex_plane.tenancy.model.access import Actor, Permission
from cortex_plane.tenancy.verbs.frame import verb


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
        receipt = _passed_before(gates, draft)
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
    await _write(db, actor, context, gates, shut_gate)
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


def _passed_before(gates: GateSession, draft: AnswerDraft) -> AnswerReceipt | None:
    """Whoever repeats an answer that was accepted hears the same again."""
    for gate in gates.atlases.named(draft.gate):
        passes = [entry for entry in gates.state.passes if entry.gate == gate.key]
        names = [call_name(GatedCall(action=own.action, arguments={}, input_hash=own.input_hash)) for own in passes]
        is_passed = bool(passes) or (gate.key in gates.state.passed and not gate.of_a_call)
        if draft.call in names or (draft.call is None and is_passed):
            waiting = gates.questions(gates.state.open)
            return AnswerReceipt(gate=gate.gate_id, passed=True, next="It is passed already. Go on.", questions=waiting)
    return None


async def _write(db: Database, actor: Actor, context: CallContext, gates: GateSession, before: Shut | None) -> None:
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
