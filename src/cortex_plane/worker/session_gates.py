"""The gates of a job's session: evaluated between steps, asked about each call, and written with the steps.

A call uses up its pass in the write that has its intent, or, where it only reads, its result: so it is charged once, and
never for asking. A session that is bound to no atlas has no gates, and all of this costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.tools import OnUncertain
from cortex_plane.approvals.model.approvals import ApprovalKind
from cortex_plane.gates.model import gates as gate_model
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.rules.authorization import LIMITING, Authorization
from cortex_plane.gates.rules.effects import EvaluationRun
from cortex_plane.gates.rules.evaluation import judge, ran
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import prompt_parts, questions
from cortex_plane.gates.rules.session import GateChanges, GateSession, PendingEvaluation, same_question
from cortex_plane.gates.verbs.answer_checks import ask_stewards
from cortex_plane.gates.verbs.atlas_cache import book
from cortex_plane.gates.verbs.session_gates import search_texts
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.jobs import Hold, JobKind
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.jobs.verbs import workers
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import CortexError, GateClosed, Unavailable
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.sessions.rules import SessionMessage, inputs_of
from cortex_plane.worker import gate_code
from cortex_plane.worker.calls import Call, CallKind, storable
from cortex_plane.worker.ends import Ended, JobFailed, JobHeld
from cortex_plane.worker.lease import Lease
from cortex_plane.worker.limits import ticks

log = structlog.get_logger()

INPUT = "input"
"""In the cursor: the input of a task was evaluated."""
AFTER = "after"
"""In the cursor: gates after a call were evaluated for the calls before this position of the current step."""
JUDGED = "told"
"""In the cursor: the calls of the current step were judged under so many atlases, and the gate events are written."""
BY_THE_PLANE = PolicyDecision(verdict=PolicyVerdict.ALLOW, rule="plane")
_RUNS = (CallStatus.INTENDED, CallStatus.COMPLETED, CallStatus.FAILED)
AGAIN = "Answer it, then make the same call again."
NEXT = "Do not call it again; go another way."


class AttemptGates:
    """The gate session of one attempt, with the calls that are on their way: each needs what lets it through for itself."""

    def __init__(self, atlases: CompiledAtlases, bound: dict[str, Any], now: Callable[[], datetime]) -> None:
        self._now = now
        self.session = GateSession(atlases, bound, now, ticks=ticks)
        self._due: dict[UUID, tuple[Call, gate_model.GatedCall]] = {}
        """Calls that were let through and are not charged yet."""
        self._states: dict[UUID, gate_model.GateState] = {}
        """The state that let them through, where it is known exactly."""
        self._sent: tuple[StepWrite, Sequence[UUID]] | None = None
        """The write that was parsed last, and the ids of the calls that it sends."""
        self._ahead: tuple[gate_model.GateState, gate_model.GateState] | None = None
        """The state before the response, and the same as if all of them had been sent; None until it is needed."""
        self._requests: dict[UUID, tuple[gate_model.GatedCall, Sequence[Gate]]] = {}
        """Calls that people are asked about, with the gates that they are shown."""
        self._has_tried = False
        """A question that stops the session was answered, rightly or not, in the current response."""
        self._prompt: tuple[CompiledAtlases, gate_model.GateState, gate_model.PromptParts] | None = None

    def rebase(self, atlases: CompiledAtlases, bound: Mapping[str, Any]) -> None:
        """On top of the state that the database has now."""
        self.session.rebase(atlases, bound)
        self._ahead = None

    def forget(self, calls: Iterable[Call]) -> set[str]:
        """Calls that the next attempt judges again: their evaluations did not happen. Returns those that had any."""
        self._ahead = None
        return self.session.forget({str(call.id) for call in calls})

    def drop(self) -> None:
        self._ahead = None
        self.session.drop()

    def end_calls(self, calls: Sequence[Call]) -> None:
        """Calls ended: gates after them are part of the write with their outcome."""
        ends = [call for call in calls if call.status in _RUNS and governed(call)]
        errors = tuple(f"{call.name}: {call.error or 'it failed'}" for call in ends if call.status is CallStatus.FAILED)
        self._ahead = None  # a call that ran gives what it grants
        if ends:
            names = tuple(call.name for call in ends)
            self.session.boundary(gate_model.GateInput(now=self._now(), finished=names, errors=errors))

    def begin_response(self) -> None:
        """The calls of one response are judged by the state before it."""
        self.session.begin_response()
        self._has_tried, self._ahead = False, None
        self._due = {id: due for id, due in self._due.items() if due[0].status is not CallStatus.REJECTED}
        self._states = {id: state for id, state in self._states.items() if id in self._due}

    def judge_new(self, call: gate_model.GatedCall) -> gate_model.Ruling:
        """Of a new call. Calls on their way use up what lets them through, so that each needs its own."""
        session, now = self.session, self._now()
        state = self._after_due(session.before, call, now)
        if state is session.state:
            return session.judge(call)
        elapsed = session.stopwatch()
        ruling = judge(session.atlases, state, call, now, elapsed=elapsed)

        def change(atlases: CompiledAtlases, current: gate_model.GateState) -> gate_model.Ruling:
            result = judge(atlases, current, call, now, elapsed=elapsed)
            # Open are the questions of the ruling: not those that this call would meet by what came after it.
            state = _opened(atlases, replace(result.state, open=current.open), ruling.asks, now)
            return replace(result, state=state, traces=ruling.traces)

        session.evaluate(change, call.call_id)
        return ruling

    def _after_due(
        self, state: gate_model.GateState, call: gate_model.GatedCall, now: datetime
    ) -> gate_model.GateState:
        """As if all others that were let through had been sent."""
        others = [due for due in self._due.values() if due[1].call_id != call.call_id]
        if len(others) == len(self._due) and self._ahead is not None and self._ahead[0] is state:
            return self._ahead[1]
        after = state
        for other, earlier in others:
            after = ran(self.session.atlases, after, earlier, now, grants=other.settled).state
        if len(others) == len(self._due):
            self._ahead = state, after
        return after

    def judge_again(self, call: gate_model.GatedCall, *, is_resend: bool) -> gate_model.Ruling:
        """Of a call that was judged before; nothing of it is traced or remembered. ``is_resend``: it passed its gates and was
        counted then, and only what is forbidden now keeps it from being sent again."""
        session, now = self.session, self._now()
        if is_resend:
            return session.judge_sent(call, records=False)
        ruling = judge(session.atlases, self._after_due(session.state, call, now), call, now)
        return replace(ruling, state=session.state, traces=())

    def let_through(self, call: Call, *, has_approval: bool = False) -> None:
        """It is charged by the write that sends it."""
        session, is_due = self.session, call.id in self._due
        gated_call = as_gated(call, has_approval=has_approval)
        self._due[call.id] = call, gated_call
        if session.state is session.before or session.state == session.before:
            self._states[call.id] = session.state
        if self._ahead is not None:
            # One more on its way: all of them are not counted again for each.
            state, after = self._ahead
            after = after if is_due else ran(session.atlases, after, gated_call, self._now(), grants=False).state
            self._ahead = None if is_due else (state, after)

    def withdraw(self, call: Call) -> None:
        """It is not sent after all."""
        self._states.pop(call.id, None)
        if self._due.pop(call.id, None) is not None:
            self._ahead = None

    def is_scarce(self, call: Call) -> bool:
        """Whether sending it uses something up, which two must not share."""
        return (
            self.session.metered
            or any(policy.type in LIMITING for _, policy in self.session.atlases.of_action(call.name).policies)
            or any((own.action, own.input_hash) == (call.name, call.input_hash) for own in self.session.state.passes)
        )

    def add_request(self, call: Call) -> None:
        """People are asked about it. The gates that they are shown are recorded by the write that asks, and by no other."""
        if call.ruling is not None:
            self._requests[call.id] = as_gated(call), call.ruling.people

    @property
    def prompt(self) -> gate_model.PromptParts:
        """Read several times a step, and seldom another one."""
        atlases, state = self.session.atlases, self.session.state
        if self._prompt is None or self._prompt[0] is not atlases or self._prompt[1] is not state:
            self._prompt = atlases, state, prompt_parts(atlases, state)
        return self._prompt[2]

    async def answer(self, values: Mapping[str, Any], lease: Lease) -> dict[str, Any]:
        """The agent answers a gate: what it is sent back."""
        session, answers = self.session, values["answers"]
        target = session.answer_target(str(values["gate"]), values["call"])
        faults: dict[str, str | None] = {}
        if target.which is not None and not target.which.call:
            self._has_tried = True
        if target.gate is not None:
            faults = await gate_code.run_validators(target.gate, lease.app.validators, answers)
            callbacks, where = lease.worker.callbacks, lease.assignment
            faults |= await ask_stewards(callbacks, where.org_id, where.session_id, target, answers)
        result = session.record_answer(target, answers, faults)
        if result.valid or target.which is None or same_question(session.state, target.which) is not None:
            return result.told
        return {**result.told, "shut": True, "reason": "; ".join(map(str, result.told.get("faults", {}).values()))}

    def request_context(self, names: Sequence[str]) -> dict[str, Any]:
        session = self.session
        earlier = set(session.state.contexts)
        result = session.request(names)
        contexts = session.atlases.contexts
        titles = [contexts[key].name for key in result.state.contexts if key not in earlier and key in contexts]
        unknown = [name[:200] for name in names if not session.atlases.requested(name)]
        missing = {"unknown": unknown} if unknown and len(names) > 1 else {}
        if result.fired:
            return {"found": True, "given": titles, **missing, "next": "It stands in your instructions from now on."}
        return {"found": False, **missing, "next": "Nobody wrote anything down under this name; go on without it."}

    def count_unanswered(self) -> None:
        """After a response: one that did not try to answer what stops the session counts as a wrong answer."""
        if not self._has_tried:
            self.session.count_unanswered()

    def refusal_text(self, call: Call, ruling: gate_model.Ruling) -> str:
        waiting = self.session.open_questions(ruling)
        if ruling.asks:
            return f"`{call.name}` was not called. {questions(self.session.atlases, waiting)} {AGAIN}"
        if waiting:
            return f"`{call.name}` was not called: {ruling.reason}. {AGAIN}"
        return f"`{call.name}` is denied ({ruling.rule}): {ruling.reason or 'its atlas does not allow it'}. {NEXT}"

    def gate_closed(self, call: Call, ruling: gate_model.Ruling) -> GateClosed | None:
        """The same for code; None where no answer would help."""
        waiting = self.session.questions(self.session.open_questions(ruling))
        return GateClosed(call.error or self.refusal_text(call, ruling), questions=waiting) if waiting else None

    def calls_sent_by(self, write: StepWrite) -> list[tuple[UUID, gate_model.GatedCall]]:
        """The calls that run with this write and were not charged yet."""
        if not self._due:
            return []
        if self._sent is None or self._sent[0] is not write:
            ids = [row["id"] for row in orjson.loads(write.calls or b"[]") if row["status"] in _RUNS]
            ids += [row["id"] for row in orjson.loads(write.intents or b"[]") if row["grant"]]
            self._sent = write, [UUID(id) for id in ids]
        return [(id, self._due[id][1]) for id in self._sent[1] if id in self._due]

    def allows_write(self, write: StepWrite) -> bool:
        """Whether every call that a write sends would be let through by the state of now."""
        return self._allows(self._due[id] for id, _ in self.calls_sent_by(write))

    def allows_calls(self, calls: Iterable[Call]) -> bool:
        """The same of calls that are about to run."""
        return self._allows(self._due[call.id] for call in calls if call.id in self._due)

    def _allows(self, calls: Iterable[tuple[Call, gate_model.GatedCall]]) -> bool:
        """By what happened, and not by rulings on calls that are not settled: the next attempt judges those again. A settled
        call ran already."""
        session, now = self.session, self._now()
        ids = {str(id) for id in self._due}
        others = (evaluation for evaluation in session.evaluations if evaluation.call not in ids)
        state = session.apply(session.written, others)
        for call, request in calls:
            earlier = self._states.get(call.id)
            if state is earlier or state == earlier:
                continue  # nothing came since it was let through
            # Also for an approved call: its approvers did not see a gate that stands before it by now.
            ruling = None if call.settled else judge(session.atlases, state, request, now)
            if ruling is not None and ruling.verdict is not PolicyVerdict.ALLOW:
                return False
            state = ran(session.atlases, state, request, now, grants=call.settled).state
        return True

    def changes_for(self, write: StepWrite, evaluations: Sequence[PendingEvaluation]) -> GateChanges:
        """What goes with this write, of the evaluations before it."""
        ids = [request.call_id for request in write.requests if request.kind is ApprovalKind.CALL]
        cards = [self._requests[id] for id in ids if id in self._requests]
        calls = self.calls_sent_by(write)
        changes = self.session.changes(evaluations, cards=cards, calls=calls, counts=write.dispatches)
        if write.dispatches or write.reads:
            # A session that was bound to another atlas meanwhile sends nothing that its gates did not evaluate.
            seen = {"atlases": len(self.session.atlases.atlases), "revision": self.session.revision}
            return replace(changes, more=changes.more | seen)
        return changes

    def commit(self, changes: GateChanges) -> None:
        """The write was made."""
        self._ahead = self._sent = None
        self.session.commit(changes)
        for id, _ in changes.calls:
            self._due.pop(id, None)
            self._states.pop(id, None)


def _opened(
    atlases: CompiledAtlases, state: gate_model.GateState, entries: Iterable[gate_model.Open], now: datetime
) -> gate_model.GateState:
    """A question can be answered, also where an earlier call has not used up its pass yet."""
    run = EvaluationRun(atlases, state, now)
    for entry in entries:
        if same_question(state, entry) is None:
            run.ask_call(entry)
    return run.state()


def governed(call: Call) -> bool:
    """Gates apply to whatever acts; the plane's own tools are theirs, or people's."""
    return call.name not in gate_model.OF_THE_PLANE


def as_gated(call: Call, *, has_approval: bool = False) -> gate_model.GatedCall:
    return gate_model.GatedCall(
        action=call.name,
        arguments=orjson.loads(call.arguments),
        input_hash=call.input_hash,
        risk=call.code.risk,
        approved=has_approval,
        call_id=str(call.id),
        told=call.judged_before,
    )


class SessionGates:
    def __init__(self, lease: Lease, *, runs_code: bool) -> None:
        self._lease, self._runs_code = lease, runs_code
        self.bound: AttemptGates | None = None
        """None where the session is bound to no atlas."""
        self._messages: list[SessionMessage] = []
        """Messages of people that gates have not evaluated yet."""
        self._texts: Sequence[str] = ()
        """What was evaluated last: it is evaluated again where another attempt wrote first."""

    async def load(self, messages: Sequence[SessionMessage]) -> None:
        """Load the session's gates. Gates that cannot be read are not bypassed: the job is held."""
        lease, bound = self._lease, self._lease.assignment.bound
        if bound is None:
            return
        try:
            atlases = await book.at(lease.db, lease.assignment.org_id, bound["atlases"])
            self.bound = AttemptGates(atlases, bound, lease.time.now)
        except Unavailable:
            raise
        except (CortexError, ValueError) as error:
            raise Ended(self._unreadable(error)) from error
        # Messages from before the session was bound are history.
        since = max(int(bound["since"]), self.bound.session.state.heard)
        self.add_messages([message for message in messages if message.seq > since])

    def _unreadable(self, error: CortexError | ValueError) -> JobHeld:
        """Decisions of people stay: once the gates are repaired, the job goes on from here."""
        why = error.message if isinstance(error, CortexError) else str(error)
        hint = error.hint if isinstance(error, CortexError) else "Restore the row of `session_gates` from a backup."
        reason = f"The gates of its session cannot be read: {why.rstrip('.')}."
        message = storable(f"{reason} {hint} Then `cortex job resume` it.")
        log.error("gates unreadable", job_id=str(self._lease.assignment.job_id), reason=message)
        return JobHeld(Hold.GATES_UNREADABLE, {"why": message[:2000]}, StepWrite(error=message[:8000]))

    async def reload(self, gates: AttemptGates) -> None:
        """Another attempt of the same session wrote first."""
        lease = self._lease
        bound = await workers.bound_atlases(lease.db, lease.assignment)
        if bound is None:
            raise RuntimeError(f"The session of job {lease.assignment.job_id} is bound to nothing any more.")
        atlases = await book.at(lease.db, lease.assignment.org_id, bound["atlases"])
        await search_texts(atlases, self._texts)
        gates.rebase(atlases, bound)

    def add_messages(self, messages: Sequence[SessionMessage]) -> None:
        if self.bound is not None and self._lease.assignment.kind is JobKind.CONVERSATION:
            self._messages += [message for message in messages if message.role == "user"]

    async def evaluate(self) -> bool:
        """Which gates fire now. True: a trace must be durable before anything else happens."""
        gates, lease = self.bound, self._lease
        if gates is None:
            return False
        is_conversation = lease.assignment.kind is JobKind.CONVERSATION
        inputs, self._messages = self._inputs(), []
        self._texts = inputs
        searched_ms = await search_texts(gates.session.atlases, inputs)
        result = await gate_code.run_triggers(gates.session.atlases, lease.app.triggers, inputs)
        moment = gate_model.GateInput(
            now=lease.time.now(),
            inputs=inputs,
            heard=lease.progress.message_seq if is_conversation else 0,
            task=self._task if inputs and not is_conversation else "",
            custom=frozenset(result.firing),
            unknown=frozenset(result.unknown),
        )
        gates.session.boundary(moment, searched_ms + result.elapsed_ms, result.traces)
        for gate, reason in result.failures:
            lease.notes.append(lease.fact("trigger_failed", gate=gate.key, reason=reason))
        lease.progress.gates = {**lease.progress.gates, INPUT: 1}
        self.require_open()
        return gates.session.urgent

    @property
    def _task(self) -> str:
        return str(self._lease.assignment.job_id)

    def _inputs(self) -> tuple[str, ...]:
        assignment = self._lease.assignment
        if assignment.kind is JobKind.CONVERSATION:
            return tuple(message.text for message in self._messages)
        tasks = self.bound.session.state.tasks if self.bound is not None else ()
        if self._lease.progress.gates.get(INPUT) or self._task in tasks:
            return ()
        return inputs_of(assignment.payload, code=self._runs_code)

    def require_open(self, write: StepWrite | None = None) -> None:
        """A gate that shut the whole session ends the job. ``write``: what is kept of the step."""
        shut = self.bound.session.shut if self.bound is not None else None
        if shut is not None:
            message = f"The gate `{shut.gate}` is shut: {shut.reason.rstrip('.')}."
            remedy = (
                "Its session goes no further: look at `cortex job watch` for what was asked, and open a new session."
            )
            raise Ended(JobFailed(message, remedy, write))

    def mark_judged(self) -> None:
        """The calls of a step were judged: the gate events go with the next write, and are not written again."""
        if self.bound is not None:
            progress = self._lease.progress
            progress.gates = {**progress.gates, JUDGED: len(self.bound.session.atlases.atlases)}

    def restore_judged(self, calls: Sequence[Call]) -> None:
        """Of calls that an earlier attempt judged. If an atlas was bound since, they are judged again."""
        count = self._lease.progress.gates.get(JUDGED)
        judged_before = self.bound is not None and count == len(self.bound.session.atlases.atlases)
        for call in calls:
            call.judged_before = judged_before

    def forget(self, calls: Sequence[Call]) -> None:
        """Calls that are neither sent nor requested: the next attempt judges them again, and writes the gate events."""
        if self.bound is not None:
            ids = self.bound.forget(calls)
            if any(str(call.id) in ids and not call.judged_before for call in calls):
                progress = self._lease.progress
                progress.gates = {name: at for name, at in progress.gates.items() if name != JUDGED}

    def end_calls(self, calls: Sequence[Call], before: int | None = None) -> None:
        """Calls of the current step ended: gates after them fire once. ``before``: a position; None is all of them."""
        if self.bound is None:
            return
        progress = self._lease.progress
        since = progress.gates.get(AFTER, 0)
        upto = len(calls) if before is None else before
        self.bound.end_calls([call for call in calls if since <= call.position < upto])
        cursor = {name: at for name, at in progress.gates.items() if name != AFTER}
        if before is not None:
            cursor[AFTER] = max(since, upto)
        progress.gates = cursor

    def rule_on(self, call: Call, *, is_new: bool) -> gate_model.Ruling | None:
        """The gates' ruling on a call; None where no gate applies. ``is_new``: questions are opened, and it is traced."""
        if self.bound is None or not governed(call):
            return None
        if is_new:
            return self.bound.judge_new(as_gated(call))
        gated_call = as_gated(call, has_approval=call.has_grant or call.status is CallStatus.APPROVED)
        return self.bound.judge_again(gated_call, is_resend=call.settle_after is not None)

    def let_through(self, call: Call) -> None:
        """Gates do not stop the call: it is charged when it runs. A call that was sent before was charged then."""
        if self.bound is None or not governed(call) or call.settle_after is not None:
            return
        self.bound.let_through(call, has_approval=call.status is CallStatus.APPROVED)
        if call.kind is CallKind.READ and self.bound.is_scarce(call):
            # A call that uses something up leaves a row before it is sent, so that no two share it. Reading twice is harmless.
            call.kind, call.declaration = CallKind.EFFECT, OnUncertain.RETRY_WITH_KEY

    def explain_refusal(self, call: Call) -> None:
        """The error of a call that gates refused contains their questions."""
        ruling = call.ruling
        if self.bound is None or ruling is None or call.status is not CallStatus.REJECTED:
            return
        if ruling.verdict is PolicyVerdict.DENY:
            call.error = self.bound.refusal_text(call, ruling)

    async def answer(self, calls: Sequence[Call]) -> None:
        """Settle the agent's calls to gates, after all other calls of the response were judged."""
        for call in calls:
            if self.bound is None or call.name not in gate_model.PLANE_TOOLS or call.tool is None or call.settled:
                continue
            call.authorization = Authorization(BY_THE_PLANE)
            if call.name == gate_model.ANSWER:
                reply = await self.bound.answer(call.values, self._lease)
            else:
                name = call.values["name"]
                reply = self.bound.request_context([name] if isinstance(name, str) else name)
            call.kind, call.status = CallKind.READ, CallStatus.COMPLETED
            call.result = canonical(reply)

    def system_prompt(self, own: str | None) -> str | None:
        """A system prompt with the parts that gates add to it; the parts that rarely change come first."""
        if self.bound is None:
            return own
        parts = self.bound.prompt
        return "\n\n".join(part for part in (parts.instructions, own, parts.knowledge) if part) or None

    @property
    def notice(self) -> str:
        """The questions that must be answered before anything else."""
        return self.bound.prompt.questions if self.bound is not None else ""
