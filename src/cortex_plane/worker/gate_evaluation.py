"""The gates of a session in one attempt: their rulings, their state, and how the state goes with the attempt's writes.

Evaluating changes nothing but the state that is held here. The state goes with the next write, together with the step, the
intents and the facts that it belongs to; what was evaluated while a write was under way goes with the one after it. A call
uses up its pass in the write that has its intent, or, where it only reads, its result: so it is charged once, and never for
asking. If another attempt of the same session wrote first, everything that was not written is evaluated again on top of its
write.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Protocol, TypeVar
from uuid import UUID

import orjson

from cortex_plane.approvals.model.approvals import ApprovalKind
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.model.gates import (
    FOR_ONE_CALL,
    OF_THE_PLANE,
    Answered,
    GatedCall,
    GateInput,
    GateState,
    Open,
    Pass,
    PromptParts,
    Ruling,
    Shut,
    Trace,
    kept_state,
    state_of,
)
from cortex_plane.gates.rules.answers import AnswerTarget, answer, ignored, meant
from cortex_plane.gates.rules.authorization import LIMITING
from cortex_plane.gates.rules.effects import EvaluationRun, RanCall, minutes_of, notices
from cortex_plane.gates.rules.evaluation import at_boundary, judge, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import asked_of_all, prompt_parts, questions
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.jobs.model.journal import GateClosed
from cortex_plane.jobs.rules import StepWrite
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.worker.calls import Call

_RUNS = (CallStatus.INTENDED, CallStatus.COMPLETED, CallStatus.FAILED)
AGAIN = "Answer it, then make the same call again."
NEXT = "Do not call it again; go another way."


class Changed(Protocol):
    """What every evaluation returns."""

    @property
    def state(self) -> GateState: ...
    @property
    def traces(self) -> tuple[Trace, ...]: ...


C = TypeVar("C", bound=Changed)
Change = Callable[[CompiledAtlases, GateState], Changed]


@dataclass(slots=True, eq=False)
class PendingEvaluation:
    """One evaluation that is not written yet."""

    change: Change | None
    """None where it changed nothing."""
    traces: tuple[Trace, ...]
    """Computed again where it is evaluated on top of another attempt's write."""
    call: str = ""
    """The call that it was about, until that is settled or sent."""


@dataclass(frozen=True, slots=True)
class GateWrite:
    """What one write holds of gates."""

    state: GateState
    is_new: bool
    """The row is written."""
    evaluations: tuple[PendingEvaluation, ...]
    ids: tuple[UUID, ...]
    """Of the calls that it charges."""
    traces: tuple[Trace, ...]
    more: dict[str, Any]


class GateHistory:
    """The state of a session's gates: as it is written, and as the evaluations since the last write leave it."""

    def __init__(self, atlases: CompiledAtlases, bound: Mapping[str, Any]) -> None:
        self.evaluations: list[PendingEvaluation] = []
        """Since the last write: evaluated again where another attempt wrote first."""
        self._response: list[PendingEvaluation] = []
        """Those of them since the current response began."""
        self.rebase(atlases, bound)

    def rebase(self, atlases: CompiledAtlases, bound: Mapping[str, Any]) -> None:
        """On top of the state that the database has now."""
        self.atlases, self.revision = atlases, int(bound["revision"])
        self.written = state_of(bound["state"])
        # A gate that fires once fired for the attempt that wrote first, which has written its trace.
        state = self.written
        for evaluation in self.evaluations:
            if evaluation.change is not None:
                result = evaluation.change(atlases, state)
                state, evaluation.traces = result.state, result.traces
        self._replay()

    def apply(self, state: GateState, evaluations: Iterable[PendingEvaluation]) -> GateState:
        for evaluation in evaluations:
            if evaluation.change is not None:
                state = evaluation.change(self.atlases, state).state
        return state

    def _replay(self) -> None:
        """Also the state before the response: a pass that another attempt used up is gone for it too."""
        self.before = self.apply(self.written, without(self.evaluations, self._response))
        self.state = self.apply(self.written, self.evaluations) if self._response else self.before

    def begin_response(self) -> None:
        self.before, self._response = self.state, []

    def add(self, change: Change | None, traces: Sequence[Trace], call: str = "") -> None:
        if change is not None or traces:
            self.evaluations.append(PendingEvaluation(change, tuple(traces), call))
            self._response.append(self.evaluations[-1])

    def evaluate(self, change: Callable[[CompiledAtlases, GateState], C], call: str = "") -> C:
        result = change(self.atlases, self.state)
        self.add(change if result.state != self.state else None, result.traces, call)
        self.state = result.state
        return result

    def forget(self, ids: Collection[str]) -> set[str]:
        """Drop the evaluations of these calls; returns the calls that had any."""
        evaluations = [evaluation for evaluation in self.evaluations if evaluation.call in ids]
        self._drop(evaluations)
        return {evaluation.call for evaluation in evaluations}

    def drop(self) -> None:
        """Drop everything that is not written."""
        self.evaluations, self._response = [], []
        self._replay()

    def commit(self, changes: GateWrite) -> None:
        """The write was made: evaluations that came meanwhile go with the next one."""
        self.revision += changes.is_new
        self.written = changes.state
        self._drop(changes.evaluations)

    def _drop(self, evaluations: Sequence[PendingEvaluation]) -> None:
        self.evaluations = without(self.evaluations, evaluations)
        self._response = without(self._response, evaluations)
        self._replay()

    @property
    def unmet(self) -> bool:
        """The session was bound to an atlas whose gates were not evaluated yet."""
        return any(atlas_id not in self.state.fired for atlas_id in self.atlases.once)

    @property
    def urgent(self) -> bool:
        """A trace must be durable before anything else happens."""
        return any(trace.sync for evaluation in self.evaluations for trace in evaluation.traces)

    @property
    def shut(self) -> Shut | None:
        """The gate that ended the session's work for good."""
        return self.state.ended


class GateDialogue:
    """What gates ask the agent, and what it answers."""

    def __init__(self, history: GateHistory, now: Callable[[], datetime]) -> None:
        self._history, self._now = history, now
        self._prompt: tuple[CompiledAtlases, GateState | None, PromptParts | None] = (
            history.atlases, None, None,
        )  # fmt: skip
        self._has_tried = False
        """A question that stops the session was answered, rightly or not, in the current response."""

    def begin_response(self) -> None:
        self._has_tried = False

    @property
    def prompt(self) -> PromptParts:
        """Read several times a step, and seldom another one."""
        history, (atlases, state, parts) = self._history, self._prompt
        if atlases is not history.atlases or state is not history.state or parts is None:
            parts = prompt_parts(history.atlases, history.state)
            self._prompt = history.atlases, history.state, parts
        return parts

    # Answers ---------------------------------------------------------------------------------------------------

    def answer_target(self, gate: str, call: str | None) -> AnswerTarget:
        """Only questions from before the response can be answered by it."""
        target = meant(self._history.atlases, self._history.before, gate, call)
        if target.which is None:
            return target
        question = _question(target.which)
        still_open = next((entry for entry in self._history.state.open if _question(entry) == question), None)
        if still_open is None:
            return AnswerTarget(error=f"`{gate[:100]}` does not wait for an answer any more.")
        self._has_tried = self._has_tried or not still_open.call
        return AnswerTarget(gate=target.gate, which=still_open)

    def record_answer(
        self, target: AnswerTarget, answers: Mapping[str, Any], custom: Mapping[str, str | None]
    ) -> Answered:
        """``custom``: the faults that validators reported."""
        now = self._now()

        def change(atlases: CompiledAtlases, state: GateState) -> Answered:
            which = target.which and next(
                (entry for entry in state.open if _question(entry) == _question(target.which)), None
            )
            current = target if which is None else replace(target, which=which)
            if target.which is not None and which is None:
                current = AnswerTarget(error="It does not wait for an answer any more.")
            return answer(atlases, state, current, answers, custom, now)

        return self._history.evaluate(change)

    def waits_for(self, which: Open) -> bool:
        return any(_question(entry) == _question(which) for entry in self._history.state.open)

    def request_context(self, name: str) -> dict[str, Any]:
        history, now = self._history, self._now()
        earlier = set(history.state.contexts)
        result = history.evaluate(lambda atlases, state: requested(atlases, state, name, now))
        keys = [key for key in result.state.contexts if key not in earlier]
        contexts = history.atlases.contexts
        names = [contexts[key].name for key in keys if key in contexts]
        if result.fired:
            return {"found": True, "given": names, "next": "It stands in your instructions from now on."}
        return {"found": False, "next": "Nobody wrote anything down under this name; go on without it."}

    def count_unanswered(self) -> None:
        """After a response: one that did not try to answer what stops the session counts as a wrong answer."""
        if self._history.before.asks and not self._has_tried and self._history.state.asks:
            now = self._now()
            self._history.evaluate(lambda atlases, state: ignored(atlases, state, now))

    # Refusals --------------------------------------------------------------------------------------------------

    def _open_questions(self, ruling: Ruling) -> tuple[Open, ...]:
        """What must be answered before the call is made again."""
        before = self._history.before
        if ruling.asks or ruling.verdict is not PolicyVerdict.DENY or before.ended is not None:
            return ruling.asks
        return before.asks

    def refusal_text(self, call: Call, ruling: Ruling) -> str:
        """Why gates refused a call, for its agent."""
        waiting = self._open_questions(ruling)
        if ruling.asks:
            return f"`{call.name}` was not called. {questions(self._history.atlases, waiting)} {AGAIN}"
        if waiting:
            return f"`{call.name}` was not called: {ruling.reason}. {AGAIN}"
        return f"`{call.name}` is denied ({ruling.rule}): {ruling.reason or 'its atlas does not allow it'}. {NEXT}"

    def gate_closed(self, call: Call, ruling: Ruling) -> GateClosed | None:
        """The same for code; None where no answer would help."""
        waiting = asked_of_all(self._history.atlases, self._open_questions(ruling))
        return GateClosed(call.error or self.refusal_text(call, ruling), questions=waiting) if waiting else None


class AttemptGates:
    """The rulings of a session's gates on the calls of one attempt, and what its writes hold of them."""

    def __init__(self, atlases: CompiledAtlases, bound: Mapping[str, Any], now: Callable[[], datetime]) -> None:
        self._now = now
        self.history = GateHistory(atlases, bound)
        self.dialogue = GateDialogue(self.history, now)
        self._due: dict[UUID, tuple[Call, GatedCall]] = {}
        """Calls that were let through and are not charged yet."""
        self._states: dict[UUID, GateState] = {}
        """The state that let them through, where it is known exactly."""
        self._ahead: tuple[GateState, GateState] | None = None
        """The state before the response, and the same as if all of them had been sent; None until it is needed."""
        self._requests: dict[UUID, tuple[GatedCall, Sequence[Gate]]] = {}
        """Calls that people are asked about, with the gates that they are shown."""
        self.metered = bool(minutes_of(atlases))
        """Some steward limits how many calls run in a minute."""

    def rebase(self, atlases: CompiledAtlases, bound: Mapping[str, Any]) -> None:
        """On top of the state that the database has now."""
        self.history.rebase(atlases, bound)
        self._ahead = None
        self.metered = bool(minutes_of(atlases))

    def forget(self, calls: Iterable[Call]) -> set[str]:
        """Calls that the next attempt judges again: their evaluations did not happen.

        Returns the ids of those that had any.
        """
        self._ahead = None
        return self.history.forget({str(call.id) for call in calls})

    def drop(self) -> None:
        self._ahead = None
        self.history.drop()

    # Between two steps -----------------------------------------------------------------------------------------

    def evaluate(self, moment: GateInput, elapsed_ms: float = 0.0, traces: Sequence[Trace] = ()) -> None:
        """``traces``: of gates that could not be evaluated."""
        self.history.evaluate(lambda atlases, state: at_boundary(atlases, state, moment, elapsed_ms))
        self.history.add(None, traces)

    def end_calls(self, calls: Sequence[Call]) -> None:
        """Calls ended: gates after them are part of the write with their outcome."""
        ends = [call for call in calls if call.status in _RUNS and governed(call)]
        errors = tuple(f"{call.name}: {call.error or 'it failed'}" for call in ends if call.status is CallStatus.FAILED)
        self._ahead = None  # a call that ran gives what it grants
        if ends:
            names = tuple(call.name for call in ends)
            self.evaluate(GateInput(now=self._now(), finished=names, errors=errors))

    def record_error(self, error: str) -> None:
        self.evaluate(GateInput(now=self._now(), errors=(error,)))

    # The calls of a response -----------------------------------------------------------------------------------

    def begin_response(self) -> None:
        """The calls of one response are judged by the state before it."""
        self.history.begin_response()
        self.dialogue.begin_response()
        self._ahead = None
        self._due = {id: due for id, due in self._due.items() if due[0].status is not CallStatus.REJECTED}
        self._states = {id: state for id, state in self._states.items() if id in self._due}

    def judge_new(self, call: GatedCall) -> Ruling:
        """Of a new call. Calls on their way use up what lets them through, so that each needs its own."""
        history, now = self.history, self._now()
        state = self._after_due(history.before, call, now)
        if state is history.state:
            return history.evaluate(lambda atlases, current: judge(atlases, current, call, now), call.call_id)
        ruling = judge(history.atlases, state, call, now)

        def change(atlases: CompiledAtlases, current: GateState) -> Ruling:
            result = judge(atlases, current, call, now)
            # Open are the questions of the ruling: not those that this call would meet by what came after it.
            state = _opened(atlases, replace(result.state, open=current.open), ruling.asks, now)
            return replace(result, state=state, traces=ruling.traces)

        history.evaluate(change, call.call_id)
        return ruling

    def _after_due(self, state: GateState, call: GatedCall, now: datetime) -> GateState:
        """As if all others that were let through had been sent."""
        others = [due for due in self._due.values() if due[1].call_id != call.call_id]
        if len(others) == len(self._due) and self._ahead is not None and self._ahead[0] is state:
            return self._ahead[1]
        after = state
        for other, earlier in others:
            after = ran(self.history.atlases, after, earlier, now, grants=other.settled).state
        if len(others) == len(self._due):
            self._ahead = state, after
        return after

    def judge_again(self, call: GatedCall, *, is_resend: bool) -> Ruling:
        """Of a call that was judged before; nothing of it is traced or remembered. ``is_resend``: it passed its gates and was
        counted then, and only what is forbidden now keeps it from being sent again."""
        history, now = self.history, self._now()
        state = replace(history.state, spent={}) if is_resend else self._after_due(history.state, call, now)
        ruling = judge(history.atlases, state, call, now)
        if is_resend and ruling.asks:
            # Not those of a capability: it was locked since, and is opened by an answer only.
            passes = (
                Pass(gate=question.gate, action=call.action, input_hash=call.input_hash)
                for question in ruling.asks
                if history.atlases.gates[question.gate].trigger.type in FOR_ONE_CALL
            )
            ruling = judge(history.atlases, replace(state, passes=(*state.passes, *passes)), call, now)
        return replace(ruling, state=history.state, traces=())

    def let_through(self, call: Call, *, has_approval: bool = False) -> None:
        """It is charged by the write that sends it."""
        history, is_due = self.history, call.id in self._due
        gated_call = as_gated(call, has_approval=has_approval)
        self._due[call.id] = call, gated_call
        if history.state == history.before:
            self._states[call.id] = history.state
        if self._ahead is not None:
            # One more on its way: all of them are not counted again for each.
            state, after = self._ahead
            self._ahead = (
                None if is_due else (state, ran(history.atlases, after, gated_call, self._now(), grants=False).state)
            )

    def withdraw(self, call: Call) -> None:
        """It is not sent after all."""
        self._states.pop(call.id, None)
        if self._due.pop(call.id, None) is not None:
            self._ahead = None

    def is_scarce(self, call: Call) -> bool:
        """Whether sending it uses something up, which two must not share."""
        gates = self.history.atlases.of_action(call.name)
        return any(policy.type in LIMITING for _, policy in gates.policies) or any(
            (own.action, own.input_hash) == (call.name, call.input_hash) for own in self.history.state.passes
        )

    def add_request(self, call: Call) -> None:
        """People are asked about it. The gates that they are shown are recorded by the write that asks, and by no other."""
        if call.ruling is not None:
            self._requests[call.id] = as_gated(call), call.ruling.people

    # Writing ---------------------------------------------------------------------------------------------------

    def calls_sent_by(self, write: StepWrite) -> list[tuple[UUID, GatedCall]]:
        """The calls that run with this write and were not charged yet."""
        if not self._due:
            return []
        rows = orjson.loads(write.calls or b"[]")
        ids = [row["id"] for row in rows if row["status"] in _RUNS]
        ids += [row["id"] for row in orjson.loads(write.granted or b"[]") if "standing_id" not in row]
        return [(id, self._due[id][1]) for id in map(UUID, ids) if id in self._due]

    def allows_write(self, write: StepWrite) -> bool:
        """Whether every call that a write sends would be let through by the state of now."""
        return self._allows(self._due[id] for id, _ in self.calls_sent_by(write))

    def allows_calls(self, calls: Iterable[Call]) -> bool:
        """The same of calls that are about to run."""
        return self._allows(self._due[call.id] for call in calls if call.id in self._due)

    def _allows(self, calls: Iterable[tuple[Call, GatedCall]]) -> bool:
        """By what happened, and not by rulings on calls that are not settled: the next attempt judges those again. A settled
        call ran already."""
        history, now = self.history, self._now()
        ids = {str(id) for id in self._due}
        others = (evaluation for evaluation in history.evaluations if evaluation.call not in ids)
        state = history.apply(history.written, others)
        for call, request in calls:
            if state == self._states.get(call.id):
                continue  # nothing came since it was let through
            # Also for an approved call: its approvers did not see a gate that stands before it by now.
            ruling = None if call.settled else judge(history.atlases, state, request, now)
            if ruling is not None and ruling.verdict is not PolicyVerdict.ALLOW:
                return False
            state = ran(history.atlases, state, request, now, grants=call.settled).state
        return True

    def changes_for(self, write: StepWrite, evaluations: tuple[PendingEvaluation, ...]) -> GateWrite:
        """What goes with this write, of the evaluations before it. Nothing changes here until it is made."""
        history, now = self.history, self._now()
        atlases, state = history.atlases, history.state
        if list(evaluations) != history.evaluations:
            # Evaluations that came while the write was tried belong to other branches, and go with their writes.
            state = history.apply(history.written, evaluations)
        traces = [trace for evaluation in evaluations for trace in evaluation.traces]
        for request in write.requests:
            if request.kind is ApprovalKind.CALL and request.call_id in self._requests:
                state = shown(atlases, state, *self._requests[request.call_id], now).state
        calls = self.calls_sent_by(write)
        for _, call in calls:
            charge = ran(atlases, state, call, now)
            state = charge.state
            traces += charge.traces
        more: dict[str, Any] = {}
        if state != history.written:
            more = {"state": kept_state(state)}
        if write.dispatches and calls and self.metered:
            more["minutes"] = minutes_of(atlases, len(calls))
        news = notices(atlases, traces, [RanCall(action=c.action, risk=c.risk, call_id=str(id)) for id, c in calls])
        if news:
            more["notices"] = news
        if write.dispatches or write.reads:
            # A session that was bound to another atlas meanwhile sends nothing that its gates did not evaluate.
            more["atlases"] = len(atlases.atlases)
        if more:
            more["revision"] = history.revision
        return GateWrite(
            state=state, is_new="state" in more, evaluations=evaluations, ids=tuple(id for id, _ in calls),
            traces=tuple(traces), more=more,
        )  # fmt: skip

    def commit(self, changes: GateWrite) -> None:
        """The write was made."""
        self._ahead = None
        self.history.commit(changes)
        for id in changes.ids:
            self._due.pop(id, None)
            self._states.pop(id, None)


def without(evaluations: Sequence[PendingEvaluation], removal: Sequence[PendingEvaluation]) -> list[PendingEvaluation]:
    return [evaluation for evaluation in evaluations if evaluation not in removal] if removal else list(evaluations)


def _question(which: Open) -> tuple[str, str, str]:
    return which.gate, which.action, which.input_hash


def _opened(atlases: CompiledAtlases, state: GateState, questions: Iterable[Open], now: datetime) -> GateState:
    """A question can be answered, also where an earlier call has not used up its pass yet."""
    run = EvaluationRun(atlases, state, now)
    earlier = {_question(entry) for entry in state.open}
    for entry in questions:
        if _question(entry) not in earlier:
            run.ask_call(entry)
    return run.state()


def governed(call: Call) -> bool:
    """Gates apply to whatever acts; the plane's own tools are theirs, or people's."""
    return call.name not in OF_THE_PLANE


def as_gated(call: Call, *, has_approval: bool = False) -> GatedCall:
    return GatedCall(
        action=call.name,
        arguments=orjson.loads(call.arguments),
        input_hash=call.input_hash,
        risk=call.code.risk,
        approved=has_approval,
        call_id=str(call.id),
        told=call.judged_before,
    )
