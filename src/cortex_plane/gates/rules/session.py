"""The gates of one session: evaluated for an attempt or for one request, and written with it.

Evaluating changes nothing but the state that is held here. It goes with the next write (`changes`), together with the step,
the intents and the facts that it belongs to; evaluations that come while a write is under way go with the one after it. If
another writer of the same session was first, everything that is not written is evaluated again on top of its write (`rebase`).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, TypeVar
from uuid import UUID

from cortex_plane.gates.model import gates as gate_model
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.rules.answers import AnswerTarget, Unchecked, answer, ignored, meant
from cortex_plane.gates.rules.effects import Elapsed, EvaluationRun, RanCall, minutes_of, no_time, notices
from cortex_plane.gates.rules.evaluation import at_boundary, judge, judge_sent, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import asked_of_all
from cortex_plane.kernel.errors import CortexError, GateClosed
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.tenancy.model.access import Actor, Fact

NOT_LOADED = "is code that only workers load: an agent that runs elsewhere cannot pass it"


Changed = gate_model.Evaluation | gate_model.Ruling | gate_model.Answered
"""What evaluations return."""
C = TypeVar("C", bound=Changed)
Change = Callable[[CompiledAtlases, gate_model.GateState], Changed]


@dataclass(slots=True, eq=False)
class PendingEvaluation:
    """One evaluation that is not written yet."""

    change: Change | None
    """None where it changed nothing."""
    traces: tuple[gate_model.Trace, ...]
    """Computed again where it is evaluated on top of another write."""
    call: str = ""
    """The call that it was about, until that is settled or sent."""


@dataclass(frozen=True, slots=True)
class GateChanges:
    """What one write holds of gates."""

    state: gate_model.GateState
    evaluations: Sequence[PendingEvaluation]
    calls: Sequence[tuple[UUID, gate_model.GatedCall]]
    """The calls that it charges."""
    traces: Sequence[gate_model.Trace]
    more: dict[str, Any]
    """For `record_gates`; empty where nothing changed."""

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return [(trace.type, trace.payload) for trace in self.traces]


class GateSession:
    """The state of a session's gates: as it is written, and as the evaluations since the last write leave it."""

    def __init__(
        self, atlases: CompiledAtlases, bound: dict[str, Any], now: Callable[[], datetime], *, loads_code: bool = True,
        ticks: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """``loads_code``: triggers and validators of the app run in this process. ``ticks``: seconds, for the time budget."""
        self.now, self._loads_code, self._ticks = now, loads_code, ticks
        self.evaluations: list[PendingEvaluation] = []
        """Since the last write."""
        self._response: list[PendingEvaluation] = []
        """Those of them since the current response began."""
        self.rebase(atlases, bound)

    def rebase(self, atlases: CompiledAtlases, bound: Mapping[str, Any]) -> None:
        """On top of the state that the database has now."""
        self.atlases, self.revision = atlases, int(bound["revision"])
        self.written = gate_model.state_of(bound["state"])
        self.metered = bool(minutes_of(atlases))
        """Some steward limits how many calls run in a minute."""
        # A gate that fires once fired for the attempt that wrote first, which has written its trace.
        state = self.written
        for evaluation in self.evaluations:
            if evaluation.change is not None:
                result = evaluation.change(atlases, state)
                state, evaluation.traces = result.state, result.traces
        self._replay()

    def apply(self, state: gate_model.GateState, evaluations: Iterable[PendingEvaluation]) -> gate_model.GateState:
        for evaluation in evaluations:
            if evaluation.change is not None:
                state = evaluation.change(self.atlases, state).state
        return state

    def _replay(self) -> None:
        """Also the state before the response: a pass that another attempt used up is gone for it too."""
        self.before = self.apply(self.written, _without(self.evaluations, self._response))
        self.state = self.apply(self.written, self.evaluations) if self._response else self.before

    def begin_response(self) -> None:
        """The calls and answers of one response, or of one request, are judged by the state before it."""
        self.before, self._response = self.state, []

    def add(self, change: Change | None, traces: Sequence[gate_model.Trace], call: str = "") -> None:
        if change is not None or traces:
            self.evaluations.append(PendingEvaluation(change, tuple(traces), call))
            self._response.append(self.evaluations[-1])

    def evaluate(self, change: Callable[[CompiledAtlases, gate_model.GateState], C], call: str = "") -> C:
        result = change(self.atlases, self.state)
        is_same = result.state is self.state or result.state == self.state
        self.add(None if is_same else change, result.traces, call)
        self.state = result.state
        return result

    def forget(self, ids: Collection[str]) -> set[str]:
        """Drop the evaluations of these calls; returns the calls that had any."""
        evaluations = [evaluation for evaluation in self.evaluations if evaluation.call in ids]
        self._drop(evaluations)
        return {evaluation.call for evaluation in evaluations}

    def drop(self) -> None:
        """Drop everything that is not written."""
        self._drop(self.evaluations)

    def _drop(self, evaluations: Sequence[PendingEvaluation]) -> None:
        self._response = _without(self._response, evaluations)
        self.evaluations = _without(self.evaluations, evaluations)
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
    def shut(self) -> gate_model.Shut | None:
        """The gate that ended the session's work for good."""
        return self.state.ended

    def boundary(
        self, moment: gate_model.GateInput, elapsed_ms: float = 0.0, traces: Sequence[gate_model.Trace] = ()
    ) -> None:
        """Between two steps or requests. ``traces``: of gates that could not be evaluated."""
        if not self._loads_code:
            # Of an atlas that is new to the session: these triggers cannot run here, so what they forbid is forbidden.
            custom = [gate for gate in self.atlases.restricting_custom if gate.atlas_id not in self.state.fired]
            moment = replace(moment, unknown=frozenset(gate.key for gate in custom))
            why = "is code that only workers load"
            traces = [gate_model.skipped(gate, f"the trigger `{gate.trigger.trigger_id}` {why}") for gate in custom]
        elapsed = self.stopwatch(elapsed_ms)
        self.evaluate(lambda atlases, state: at_boundary(atlases, state, moment, elapsed))
        self.add(None, traces)

    def stopwatch(self, before_ms: float = 0.0) -> Elapsed:
        """The milliseconds of the evaluation that begins now, up to its first look at them: whoever evaluates it again, on top
        of another write, finds the same."""
        if self.atlases.budget.max_checkpoint_time_ms is None:
            return no_time
        start = self._ticks()
        return functools.cache(lambda: before_ms + 1000 * (self._ticks() - start))

    def request(self, names: Sequence[str]) -> gate_model.Evaluation:
        """The agent asks for what its stewards wrote down."""
        now = self.now()
        return self.evaluate(lambda atlases, state: requested(atlases, state, names, now))

    def judge(self, call: gate_model.GatedCall) -> gate_model.Ruling:
        """A call that was not sent yet; its questions are opened."""
        now, refusal, elapsed = self.now(), self.unloaded(call), self.stopwatch()
        return self.evaluate(
            lambda atlases, state: refusal or judge(atlases, state, call, now, elapsed=elapsed), call.call_id
        )

    def judge_sent(self, call: gate_model.GatedCall, *, records: bool) -> gate_model.Ruling:
        """A call that was sent before. ``records``: the question of a capability that was locked since is opened."""
        now = self.now()
        ruling = judge_sent(self.atlases, self.state, call, now)
        if records and ruling.asks:
            self.evaluate(lambda atlases, state: _only_questions(judge_sent(atlases, state, call, now), state))
        elif records and ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            self.add(None, ruling.traces)
        return self.unloaded(call) or replace(ruling, state=self.state, traces=())

    def look(self, call: gate_model.GatedCall, *, any_arguments: bool = True) -> gate_model.Ruling:
        """Whether an action with any arguments, or exactly this call, would be allowed. Nothing is recorded."""
        return self.unloaded(call) or judge(self.atlases, self.state, call, self.now(), looking=any_arguments)

    def unloaded(self, call: gate_model.GatedCall) -> gate_model.Ruling | None:
        """A blocking gate whose trigger cannot run in this process stays shut."""
        if self._loads_code:
            return None
        for gate in self.atlases.blocking_custom[:1]:
            reason = f"the trigger `{gate.trigger.trigger_id}` of the gate `{gate.gate_id}` {NOT_LOADED}"
            work = EvaluationRun(self.atlases, self.state, self.now())
            work.blocked(gate, reason, call.action)
            return gate_model.Ruling(
                verdict=PolicyVerdict.DENY, rule=f"gate:{gate.key}", reason=reason, state=self.state,
                risk=self.atlases.risk_of(call.action, call.risk), traces=tuple(work.traces),
            )  # fmt: skip
        return None

    def open_questions(self, ruling: gate_model.Ruling) -> tuple[gate_model.Open, ...]:
        """What must be answered before a refused call is made again."""
        if ruling.asks or ruling.verdict is not PolicyVerdict.DENY or self.before.ended is not None:
            return ruling.asks
        return self.before.asks

    def questions(self, entries: Sequence[gate_model.Open]) -> list[dict[str, Any]]:
        return asked_of_all(self.atlases, entries)

    def closed(self, tool: str, asks: Sequence[gate_model.Open]) -> GateClosed:
        """The error that carries the questions to an agent that runs elsewhere."""
        names = ", ".join(f"`{self.atlases.gates[question.gate].gate_id}`" for question in asks)
        before = f"before `{tool}` runs" if asks[0].call else "before anything else"
        return GateClosed(
            f"The gate {names} asks {before}; the call was not made.",
            hint="Answer with `POST /v1/sessions/{id}/answers`, then send the same call again.",
            questions=self.questions(asks),
        )

    def answer_target(self, gate: str, call: str | None) -> AnswerTarget:
        """Only questions from before the response can be answered by it."""
        target = meant(self.atlases, self.before, gate, call)
        if target.which is None:
            return target
        still_open = same_question(self.state, target.which)
        if still_open is None:
            return AnswerTarget(error=f"`{gate[:100]}` does not wait for an answer any more.")
        return replace(target, which=still_open)

    def record_answer(
        self, target: AnswerTarget, answers: Mapping[str, Any], custom: dict[str, str | None]
    ) -> gate_model.Answered:
        """``custom``: the faults that validators reported."""
        now = self.now()
        if target.gate is not None and not self._loads_code:
            custom = custom | {
                question.question_id: Unchecked(f"its validator `{question.validation.custom_validator}` {NOT_LOADED}")
                for question in target.gate.questions
                if question.validation.custom_validator is not None and question.validation.connection is None
            }

        def change(atlases: CompiledAtlases, state: gate_model.GateState) -> gate_model.Answered:
            which = target.which and same_question(state, target.which)
            current = target if which is None else replace(target, which=which)
            if target.which is not None and which is None:
                current = AnswerTarget(error="It does not wait for an answer any more.")
            return answer(atlases, state, current, answers, custom, now)

        return self.evaluate(change)

    def count_unanswered(self) -> None:
        """After a response that tried to answer none of the questions that stop the session: that counts as a wrong answer."""
        if self.before.asks and self.state.asks:
            now = self.now()
            self.evaluate(lambda atlases, state: ignored(atlases, state, now))

    def changes(
        self,
        evaluations: Sequence[PendingEvaluation] | None = None,
        *,
        cards: Iterable[tuple[gate_model.GatedCall, Sequence[Gate]]] = (),
        calls: Sequence[tuple[UUID, gate_model.GatedCall]] = (),
        counts: bool = True,
    ) -> GateChanges:
        """What goes with a write; nothing changes here until it is made. ``evaluations``: those before it; None: all.
        ``cards``: calls that it asks people about, and the gates that they are shown. ``calls``: those that it sends; what let
        them through is used up, and ``counts`` says whether they count for the limits per minute."""
        atlases, state, now = self.atlases, self.state, self.now()
        if evaluations is None:
            evaluations = tuple(self.evaluations)
        elif list(evaluations) != self.evaluations:
            # Evaluations that came while the write was tried belong to other branches, and go with their writes.
            state = self.apply(self.written, evaluations)
        traces = [trace for evaluation in evaluations for trace in evaluation.traces]
        for call, gates in cards:
            state = shown(atlases, state, call, gates, now).state
        for _, call in calls:
            charge = ran(atlases, state, call, now)
            state = charge.state
            traces += charge.traces
        runs = [RanCall(action=call.action, risk=call.risk, call_id=str(id)) for id, call in calls]
        more: dict[str, Any] = {}
        if state is not self.written and state != self.written:
            more = {"state": gate_model.kept_state(state), "revision": self.revision}
        if calls and counts and self.metered:
            more["minutes"] = minutes_of(atlases, len(calls))
        if news := notices(atlases, traces, runs):
            more["notices"] = news
        return GateChanges(state, evaluations, calls, tuple(traces), more)

    def commit(self, changes: GateChanges) -> None:
        """The write was made: evaluations that came meanwhile go with the next one."""
        self.revision += "state" in changes.more
        self.written = changes.state
        self._drop(changes.evaluations)

    def record_ends(self, actor: Actor, calls: Sequence[gate_model.UnseenCall]) -> gate_model.GateRecord:
        """Calls are over: fire what comes after them."""
        errors = tuple(call.error for call in calls if call.error is not None)
        self.boundary(
            gate_model.GateInput(now=self.now(), finished=tuple(call.action for call in calls), errors=errors)
        )
        return record_of(actor, self.changes())


def _without(evaluations: Sequence[PendingEvaluation], removal: Sequence[PendingEvaluation]) -> list[PendingEvaluation]:
    return [evaluation for evaluation in evaluations if evaluation not in removal] if removal else list(evaluations)


def _only_questions(ruling: gate_model.Ruling, before: gate_model.GateState) -> gate_model.Ruling:
    return replace(ruling, state=replace(ruling.state, passes=before.passes, spent=before.spent))


def question_key(which: gate_model.Open) -> tuple[str, str, str]:
    return which.gate, which.action, which.input_hash


def same_question(state: gate_model.GateState, which: gate_model.Open) -> gate_model.Open | None:
    """The same question in another state, if it is still open there."""
    return next((entry for entry in state.open if question_key(entry) == question_key(which)), None)


def record_of(actor: Actor, changes: GateChanges, trace_id: UUID | None = None) -> gate_model.GateRecord:
    """``trace_id`` names the request on the audit trail."""
    extra = {"trace_id": str(trace_id)} if trace_id is not None else {}
    facts = [Fact.of(actor, trace.type, **trace.payload, **extra) for trace in changes.traces]
    return gate_model.GateRecord(facts, changes.events, changes.more)


def record_missed(
    actor: Actor, bound: Mapping[str, Any], calls: Sequence[gate_model.UnseenCall], why: CortexError
) -> gate_model.GateRecord:
    """Calls that ended while the gates cannot be read are kept for the next evaluation."""
    state = gate_model.state_of(bound.get("state"))
    state = replace(state, missed=(*state.missed, *calls)[-gate_model.MAX_MISSED :])
    written = {"revision": bound.get("revision", 0), "state": gate_model.kept_state(state)}
    return gate_model.GateRecord([unread_fact(actor, why, calls)], written=written)


def unread_fact(actor: Actor, why: CortexError, calls: Sequence[gate_model.UnseenCall] = ()) -> Fact:
    return Fact.of(actor, "gates_unread", calls=[call.action for call in calls], reason=why.message)
