"""The gates of a session whose agent runs elsewhere: evaluated for one request, and written with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any
from uuid import UUID

from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.model.gates import (
    MAX_MISSED,
    Answered,
    Evaluation,
    GatedCall,
    GateInput,
    GateRecord,
    GateState,
    Open,
    Ruling,
    Trace,
    UnseenCall,
    kept_state,
    skipped,
    state_of,
)
from cortex_plane.gates.rules.answers import AnswerTarget, answer
from cortex_plane.gates.rules.effects import EvaluationRun, RanCall, gate_changes, minutes_of
from cortex_plane.gates.rules.evaluation import at_boundary, judge, judge_sent, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.prompts import asked_of_all
from cortex_plane.jobs.model.journal import GateClosed
from cortex_plane.kernel.errors import CortexError
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.proof.model import Fact
from cortex_plane.tenancy.model.access import Actor

NOT_LOADED = "is code that only workers load: an agent that runs elsewhere cannot pass it"


@dataclass(kw_only=True, slots=True)
class ExternalGates:
    """The gates of a session during one request."""

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

    @classmethod
    def of(cls, atlases: CompiledAtlases, bound: Mapping[str, Any], now: datetime) -> ExternalGates:
        state = state_of(bound["state"])
        return cls(atlases=atlases, read=state, state=state, revision=bound["revision"], now=now)

    def _apply(self, evaluation: Evaluation | Ruling | Answered) -> None:
        self.state = evaluation.state
        self.traces += evaluation.traces

    def boundary(
        self,
        *,
        inputs: tuple[str, ...] = (),
        finished: tuple[str, ...] = (),
        errors: tuple[str, ...] = (),
        ends: bool = False,
    ) -> None:
        """Fire what is due since the last request: the start, what was said, intervals, what happened."""
        # Of an atlas that is new to the session: nobody here can run these triggers, so what they forbid is forbidden.
        custom = [gate for gate in self.atlases.restricting_custom if gate.atlas_id not in self.state.fired]
        moment = GateInput(
            now=self.now, inputs=inputs, finished=finished, errors=errors, ends=ends,
            unknown=frozenset(gate.key for gate in custom),
        )  # fmt: skip
        self._apply(at_boundary(self.atlases, self.state, moment))
        self.traces += [
            skipped(gate, f"the trigger `{gate.trigger.trigger_id}` is code that only workers load") for gate in custom
        ]

    def requested(self, what: str) -> None:
        """The agent asks for what its stewards wrote down."""
        self._apply(requested(self.atlases, self.state, what, self.now))

    def judged(self, call: GatedCall) -> Ruling:
        """What the gates say of a call that was not sent yet."""
        ruling = self.unloaded(call) or judge(self.atlases, self.state, call, self.now)
        self._apply(ruling)
        return ruling

    def judged_again(self, call: GatedCall) -> Ruling:
        """Of a call that was sent before."""
        before = self.state
        ruling = judge_sent(self.atlases, before, call, self.now)
        if ruling.asks:
            # A capability was locked since: its question is new, and must be remembered.
            self._apply(replace(ruling, state=replace(ruling.state, passes=before.passes, spent=before.spent)))
        elif ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            self.traces += ruling.traces
        return self.unloaded(call) or replace(ruling, state=self.state, traces=())

    def unloaded(self, call: GatedCall) -> Ruling | None:
        """A blocking gate whose trigger nobody here can run stays shut."""
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

    def closed(self, tool: str, asks: Sequence[Open]) -> GateClosed:
        """The error that carries the questions to the caller."""
        names = ", ".join(f"`{self.atlases.gates[question.gate].gate_id}`" for question in asks)
        before = f"before `{tool}` runs" if asks[0].call else "before anything else"
        return GateClosed(
            f"The gate {names} asks {before}; the call was not made.",
            hint="Answer with `POST /v1/sessions/{id}/answers`, then send the same call again.",
            questions=self.questions(asks),
        )

    def shown(self, call: GatedCall, people: Sequence[Gate]) -> None:
        """People are asked about exactly this call, with what is written now: these gates stand on their card."""
        self.state = shown(self.atlases, self.state, call, people, self.now).state

    def sent(self, call: GatedCall, call_id: UUID) -> None:
        """The call is sent with what is written now: what let it through is used up."""
        self._apply(ran(self.atlases, self.state, call, self.now))
        self.minutes = minutes_of(self.atlases)
        self.ran.append(RanCall(action=call.action, risk=call.risk, call_id=str(call_id)))

    def answered(self, target: AnswerTarget, answers: Mapping[str, Any]) -> Answered:
        custom: dict[str, str | None] = {
            question.question_id: f"its validator `{question.validation.custom_validator}` {NOT_LOADED}"
            for question in (target.gate.questions if target.gate is not None else ())
            if question.validation.custom_validator is not None
        }
        outcome = answer(self.atlases, self.state, target, answers, custom, self.now)
        self._apply(outcome)
        return outcome

    @property
    def written(self) -> dict[str, Any]:
        """For `record_gates`; empty where nothing changed."""
        changes = gate_changes(self.atlases, self.read, self.state, self.traces, self.ran)
        if "state" in changes:
            changes["revision"] = self.revision
        return changes | ({"minutes": self.minutes} if self.minutes else {})

    def facts(self, actor: Actor) -> list[Fact]:
        trace_id = {"trace_id": str(self.trace_id)} if self.trace_id is not None else {}
        return [Fact.of(actor, trace.type, **trace.payload, **trace_id) for trace in self.traces]

    @property
    def events(self) -> list[tuple[str, dict[str, Any]]]:
        return [(trace.type, trace.payload) for trace in self.traces]

    def record_ends(self, actor: Actor, calls: Sequence[UnseenCall]) -> GateRecord:
        """Calls are over: fire what comes after them."""
        self.boundary(
            finished=tuple(call.action for call in calls),
            errors=tuple(call.error for call in calls if call.error is not None),
        )
        return GateRecord(self.facts(actor), self.events, self.written)


def record_missed(actor: Actor, bound: Mapping[str, Any], calls: Sequence[UnseenCall], why: CortexError) -> GateRecord:
    """Calls that ended while the gates cannot be read are kept for the next evaluation."""
    state = state_of(bound.get("state"))
    state = replace(state, missed=(*state.missed, *calls)[-MAX_MISSED:])
    written = {"revision": bound.get("revision", 0), "state": kept_state(state)}
    return GateRecord([unread_fact(actor, why, calls)], written=written)


def unread_fact(actor: Actor, why: CortexError, calls: Sequence[UnseenCall] = ()) -> Fact:
    return Fact.of(actor, "gates_unread", calls=[call.action for call in calls], reason=why.message)
