"""Plays scenarios: gates, policies and their verdict as in a worker, without an agent, a model or a plane.

A session is played event by event. Each call, answer or request is a response of its own, as a worker judges and writes it; then
the call is judged that is looked at. Nothing is random and no clock runs, so a scenario always gives the same result.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.agents import SkillSettings
from cortex_plane.agents.model.tools import ToolDeclaration
from cortex_plane.calls.model import RequestedCall
from cortex_plane.calls.rules.pipeline import gate_call, is_unseen, judge_call, verdict_reason
from cortex_plane.gates.model.atlases import Gate
from cortex_plane.gates.model.gates import NOTHING_YET, GatedCall, GateInput, Ruling
from cortex_plane.gates.model.scenarios import EventKind, Scenario, ScenarioEvent, ScenarioOutcome
from cortex_plane.gates.rules.answers import custom_checks
from cortex_plane.gates.rules.effects import EvaluationRun
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.gates.rules.session import GateSession
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.fields import UNDECLARED, highest_risk
from cortex_plane.policies.model.policies import PolicyDecision, PolicyVerdict
from cortex_plane.policies.rules.engine import CompiledPolicies

BEGINS = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
NOTHING_DECLARED = ToolDeclaration()
ALLOW, DENY, ASK = PolicyVerdict.ALLOW, PolicyVerdict.DENY, PolicyVerdict.REQUIRES_APPROVAL


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchSetting:
    """What the calls of a scenario are judged under."""

    atlases: CompiledAtlases | None
    """None where the session is bound to none."""
    policies: CompiledPolicies
    agent: str
    teams: Sequence[UUID] = ()
    session_kind: str
    tools: Mapping[str, ToolDeclaration] = field(default_factory=dict)
    only: frozenset[str] | None = None
    """The tools that the agent may call; None for all."""


@dataclass(frozen=True, kw_only=True, slots=True)
class BenchAgent:
    """An agent as its next session has it."""

    slug: str
    teams: list[UUID]
    skill_config: dict[str, Any]

    @property
    def skills(self) -> SkillSettings:
        return SkillSettings.of(self.skill_config)


@dataclass(frozen=True, slots=True)
class BenchVerdict:
    call: RequestedCall
    decision: PolicyDecision
    ruling: Ruling | None

    @property
    def reason(self) -> str:
        return verdict_reason(self.decision, self.ruling)

    @property
    def rule(self) -> str:
        return self.decision.rule.partition("@")[0]


def play(setting: BenchSetting, scenario: Scenario) -> ScenarioOutcome:
    session = BenchSession(setting)
    for event in scenario.events:
        session.live(event)
    results = session.found(session.call(scenario.call) if scenario.call is not None else None)
    faults = [*session.faults, *_differences(scenario, results)]
    return ScenarioOutcome(
        name=scenario.name, line=scenario.line, passed=not faults, faults=faults, found=results
    )  # fmt: skip


class BenchSession:
    def __init__(self, setting: BenchSetting) -> None:
        self.setting, self.now, self.calls = setting, BEGINS, 0
        self.gates: GateSession | None = None
        if setting.atlases is not None:
            self.gates = GateSession(setting.atlases, {"revision": 0, "state": None}, lambda: self.now)
        self.faults: list[str] = []
        self._boundary()

    def _boundary(self, **moment: Any) -> None:
        if self.gates is not None:
            self.gates.boundary(GateInput(now=self.now, **moment))
            self._write(self.gates)

    def _write(
        self, gates: GateSession, cards: Sequence[tuple[GatedCall, Sequence[Gate]]] = (),
        calls: Sequence[tuple[UUID, GatedCall]] = (),
    ) -> None:  # fmt: skip
        gates.commit(gates.changes(cards=cards, calls=calls))

    def live(self, event: ScenarioEvent) -> None:
        gates = self.gates
        match event.kind:
            case EventKind.SAID:
                self._boundary(inputs=(event.text,))
            case EventKind.MINUTES:
                self.now += timedelta(minutes=event.minutes)
                self._boundary()
            case EventKind.FAILED:
                self._boundary(errors=(event.text,))
            case EventKind.TRIGGERED:
                targets = gates.atlases.named(event.text) if gates is not None else ()
                self._boundary(custom=frozenset(gate.key for gate in targets))
            case EventKind.CALLED:
                self.call(event, runs=True)
            case EventKind.APPROVED:
                self.call(event, runs=True, approved=True)
            case EventKind.ANSWERED if gates is not None:
                self._answer(gates, event)
            case EventKind.REQUESTED if gates is not None:
                gates.begin_response()
                gates.request([event.text])
                self._end_response(gates)
            case EventKind.IGNORED if gates is not None:
                gates.begin_response()
                self._end_response(gates)
            case _:
                self.faults.append(f"line {event.line}: there is no atlas, so nobody asks anything")

    def _end_response(self, gates: GateSession, *, has_tried: bool = False) -> None:
        if not has_tried:
            gates.count_unanswered()
        self._write(gates)

    def _answer(self, gates: GateSession, event: ScenarioEvent) -> None:
        gates.begin_response()
        target = gates.answer_target(event.text, None)
        checks = custom_checks(target.gate, event.answers) if target.gate is not None else []
        outcome = gates.record_answer(
            target,
            event.answers,
            {question.question_id: event.objections.get(question.question_id) for question, _ in checks},
        )
        self._end_response(gates, has_tried=target.which is not None and not target.which.call)
        if outcome.valid is not event.accepted:
            wrong = outcome.told.get("error") or "; ".join(
                f"{id}: {what}" for id, what in outcome.told.get("faults", {}).items()
            )
            message = f"is not accepted: {wrong}" if not outcome.valid else "is accepted, and should not be"
            self.faults.append(f"line {event.line}: the answer to `{event.text}` {message}")

    def call(self, event: ScenarioEvent, *, runs: bool = False, approved: bool = False) -> BenchVerdict:
        """A response with one call. ``runs``: it is sent where it is allowed. ``approved``: people approve it where they are
        asked."""
        gates, call = self.gates, self._requested(event)
        if gates is not None:
            gates.begin_response()
        verdict = self._judge(call)
        if gates is not None:
            gates.count_unanswered()
            asks = verdict.decision.verdict is ASK and verdict.ruling is not None
            self._write(gates, cards=[(gate_call(call), verdict.ruling.people)] if asks and verdict.ruling else ())
        if runs:
            self._run(event, verdict, approved=approved)
        return verdict

    def _run(self, event: ScenarioEvent, verdict: BenchVerdict, *, approved: bool) -> None:
        """As far as it is allowed."""
        allowed, granted = verdict.decision.verdict is ALLOW, False
        if approved and verdict.decision.verdict is ASK:
            verdict = self._judge(verdict.call, approved=True)
            allowed = granted = verdict.decision.verdict is not DENY and not is_unseen(verdict.ruling)
        if allowed and self.gates is not None:
            self._write(self.gates, calls=[(verdict.call.id, gate_call(verdict.call, approved=granted))])
            self._boundary(finished=(event.text,))
        if approved and not allowed:
            message = f"an approval does not let `{event.text}` run: {verdict.reason or verdict.rule}"
            self.faults.append(f"line {event.line}: {message}")

    def _requested(self, event: ScenarioEvent) -> RequestedCall:
        declaration = self.setting.tools.get(event.text, NOTHING_DECLARED)
        risks = [risk for risk in (declaration.risk, event.risk) if risk is not None]
        arguments = canonical(dict(event.arguments))
        self.calls += 1
        return RequestedCall(
            id=UUID(int=self.calls), name=event.text, digest="", arguments=arguments,
            input_hash=hashlib.sha256(arguments).hexdigest(), read_only=declaration.read_only,
            risk=highest_risk(*risks) if risks else UNDECLARED, declares_risk=bool(risks),
        )  # fmt: skip

    def _judge(self, call: RequestedCall, *, approved: bool = False) -> BenchVerdict:
        setting = self.setting
        # Gates are not asked about a tool that the agent does not have.
        is_own = setting.only is None or call.name in setting.only
        ruling = self.gates.judge(gate_call(call, approved=approved)) if self.gates is not None and is_own else None
        answer = judge_call(
            setting.policies, setting, call, (), read_only=call.read_only, ruling=ruling, only=setting.only
        )  # fmt: skip
        return BenchVerdict(call, answer.decision, ruling)

    def found(self, verdict: BenchVerdict | None) -> dict[str, Any]:
        return {**(_decided(verdict) if verdict is not None else {}), **self._after(verdict)}

    def _after(self, verdict: BenchVerdict | None) -> dict[str, Any]:
        """What the session has after the call."""
        state = self.gates.state if self.gates is not None else NOTHING_YET
        atlases = self.gates.atlases if self.gates is not None else CompiledAtlases([])
        work = EvaluationRun(atlases, state, self.now)
        asks = verdict.ruling.asks if verdict is not None and verdict.ruling is not None else ()
        gates = [atlases.gates[entry.gate] for entry in (*state.asks, *asks) if entry.gate in atlases.gates]
        return {
            "questions": [question.question_id for gate in gates for question in gate.questions],
            "contexts": _plain(state.contexts),
            "guidance": _plain(state.guidance),
            "open": _plain(key for key in atlases.capabilities if work.is_open(key)),
            "shut": _plain(entry.gate for entry in state.shut),
        }


def _decided(verdict: BenchVerdict) -> dict[str, Any]:
    decision, ruling = verdict.decision, verdict.ruling
    return {
        "decision": decision.verdict, "rule": verdict.rule, "reason": verdict.reason,
        "votes": decision.terms.quorum.votes if decision.terms is not None else None,
        "gates": [gate.gate_id for gate in ruling.fired] if ruling is not None else [],
        "people": [gate.gate_id for gate in ruling.people] if ruling is not None else [],
    }  # fmt: skip


def _plain(keys: Iterable[str]) -> list[str]:
    return sorted({key.rsplit("/", 1)[1] for key in keys})


def _differences(scenario: Scenario, results: Mapping[str, Any]) -> list[str]:
    expect, faults = scenario.expect, list[str]()
    for name in ("decision", "rule", "votes"):
        value = getattr(expect, name)
        if value is not None and results.get(name) != value:
            faults.append(f"{name}: expected {value}, and it is {results.get(name) or 'nothing'}")
    if expect.reason is not None and expect.reason.casefold() not in str(results.get("reason", "")).casefold():
        faults.append(f"reason: expected the words “{expect.reason}”, and it is “{results.get('reason', '')}”")
    for name in ("gates", "questions", "people", "contexts", "guidance", "open", "shut"):
        value, actual = getattr(expect, name), results.get(name, [])
        if value is None or (list(value) == actual if name == "gates" else sorted(value) == sorted(actual)):
            continue
        faults.append(f"{name}: expected {', '.join(value) or 'none'}, and there is {', '.join(actual) or 'none'}")
    return faults
