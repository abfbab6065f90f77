"""Scenario files: what a steward expects of an atlas, tried without an agent, a model or a plane.

A session is played event by event as in a worker, and then a call is made; the answer of the gates is compared with the
expected one. Nothing is random and no clock runs, so a scenario always gives the same result. docs/guides/steward-bench.md has
the format.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Any

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.model.gates import NOTHING_YET, GatedCall, GateInput, GateState, Ruling
from cortex_plane.gates.rules.answers import answer, custom_checks, ignored, meant
from cortex_plane.gates.rules.effects import EvaluationRun
from cortex_plane.gates.rules.evaluation import at_boundary, judge, ran, requested, shown
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel import shapes
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.documents import Bounds, Faults, ListNode, MappingNode, Node, read_document
from cortex_plane.kernel.fields import parse
from cortex_plane.policies.model.policies import PolicyVerdict

BEGINS = datetime(2026, 1, 1, 9, 0, tzinfo=UTC)
MAX_SCENARIOS = 1000
MAX_EVENTS = 1000


class EventKind(StrEnum):
    SAID = "said"
    ANSWERED = "answered"
    IGNORED = "ignored"
    """The agent says something else instead of answering what stops its session."""
    CALLED = "called"
    """It runs, where it is allowed."""
    APPROVED = "approved"
    """A call is made, and people approve it."""
    MINUTES = "minutes"
    REQUESTED = "requested"
    FAILED = "failed"
    TRIGGERED = "triggered"
    """The code of a custom trigger says yes; by the gate's id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioEvent:
    kind: EventKind
    line: int
    text: str = ""
    """What was said, or which gate, action or context."""
    minutes: float = 0
    arguments: Mapping[str, Any] = field(default_factory=dict)
    risk: Risk = Risk.LOW
    answers: Mapping[str, Any] = field(default_factory=dict)
    objections: Mapping[str, str] = field(default_factory=dict)
    """What the app's validators have against an answer, by question; elsewhere they have nothing."""
    accepted: bool = True
    """Of an answer: whether it must be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Expected:
    """What is None is not looked at."""

    decision: PolicyVerdict | None = None
    rule: str | None = None
    reason: str | None = None
    gates: tuple[str, ...] | None = None
    """That fire for the call, whatever their mode."""
    questions: tuple[str, ...] | None = None
    """That wait for the agent after the call."""
    people: tuple[str, ...] | None = None
    """Gates that a person would pass."""
    contexts: tuple[str, ...] | None = None
    guidance: tuple[str, ...] | None = None
    """The gates whose guidance the agent has."""
    open: tuple[str, ...] | None = None
    shut: tuple[str, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    name: str
    line: int
    events: tuple[ScenarioEvent, ...] = ()
    call: ScenarioEvent | None = None
    expect: Expected = Expected()


@dataclass(frozen=True, kw_only=True, slots=True)
class ScenarioOutcome:
    name: str
    line: int
    faults: list[str]
    """Each with its line; empty: it is as expected."""
    found: dict[str, Any]
    """What gates said of the call, and what the session has after it."""

    @property
    def passed(self) -> bool:
        return not self.faults


MAX_FILE_BYTES = 1024 * 1024
HINT = "Correct the file and try again; nothing was tried. Its format is in docs/guides/steward-bench.md."
_ID = shapes.Text(200, shapes.LINE, "an id")
_SAID = shapes.Text(100_000)
_IDS = shapes.ListOf(_ID, most=1000)
_EVENT = {
    EventKind.SAID: shapes.Field(_SAID, "What a person says."),
    EventKind.ANSWERED: shapes.Field(_ID, "The gate that the agent answers."),
    EventKind.IGNORED: shapes.Field(shapes.Flag(), "The agent says something else instead of answering."),
    EventKind.CALLED: shapes.Field(_ID, "An action that the agent calls; it runs where it is allowed."),
    EventKind.APPROVED: shapes.Field(_ID, "An action that the agent calls and people approve."),
    EventKind.MINUTES: shapes.Field(shapes.Amount(0, 525_600), "So many minutes pass."),
    EventKind.REQUESTED: shapes.Field(_ID, "What the agent asks its stewards for."),
    EventKind.FAILED: shapes.Field(_SAID, "Something went wrong."),
    EventKind.TRIGGERED: shapes.Field(_ID, "The gate whose custom trigger fires."),
}
_OF_CALLS = {
    "arguments": shapes.Field(shapes.JsonObject(), "Of the call."),
    "risk": shapes.Field(shapes.OneOf(tuple(Risk)), "The tool's own risk; low where it is left out."),
}
_OF_ANSWERS = {
    "with": shapes.Field(shapes.JsonObject(), "The answers, by question."),
    "accepted": shapes.Field(shapes.Flag(), "false: the answer must be refused."),
    "objections": shapes.Field(shapes.MapOf(_ID, _SAID, most=100), "What the app's validators object to, by question."),
}
EVENT = shapes.Record(
    "event", "an event", {**{str(kind): each for kind, each in _EVENT.items()}, **_OF_CALLS, **_OF_ANSWERS}
)
EXPECT = shapes.Record("expect", "what is expected", {
    "decision": shapes.Field(shapes.OneOf(tuple(PolicyVerdict)), "Of the call."),
    "rule": shapes.Field(_ID, "What decided."),
    "reason": shapes.Field(_SAID, "Words that the reason has."),
    "gates": shapes.Field(_IDS, "That fire for the call, in their order."),
    "questions": shapes.Field(_IDS, "That wait for the agent."),
    "people": shapes.Field(_IDS, "Gates that a person would pass."),
    "contexts": shapes.Field(_IDS, "That the agent knows."),
    "guidance": shapes.Field(_IDS, "The gates whose guidance the agent has."),
    "open": shapes.Field(_IDS, "Capabilities."),
    "shut": shapes.Field(_IDS, "Gates that nobody passes any more."),
})  # fmt: skip
SCENARIO = shapes.Record("scenario", "a scenario", {
    "name": shapes.Field(shapes.Text(200, shapes.LINE, "a line of text"), "For the report.", required=True),
    "session": shapes.Field(shapes.ListOf(EVENT, most=MAX_EVENTS), "What happened before, in order."),
    "call": shapes.Field(_ID, "The action that is looked at."),
    **_OF_CALLS,
    "expect": shapes.Field(EXPECT, "What must come of it.", required=True),
})  # fmt: skip
FILE = shapes.Record("file", "a scenario file", {
    "scenarios": shapes.Field(shapes.ListOf(SCENARIO, least=1, most=MAX_SCENARIOS), "What is tried.", required=True),
})  # fmt: skip
_BELONGS = {**dict.fromkeys(_OF_CALLS, (EventKind.CALLED, EventKind.APPROVED)),
            **dict.fromkeys(_OF_ANSWERS, (EventKind.ANSWERED,))}  # fmt: skip
_OF_A_CALL = ("decision", "rule", "reason", "gates", "people")


def read(text: str, *, name: str = "scenarios.yaml") -> list[Scenario]:
    """Raises ``InvalidInput`` that names every line at fault."""
    faults = Faults(code="invalid_scenarios", hint=HINT, name=name)
    root = read_document(text, faults, Bounds(MAX_FILE_BYTES), "a scenario file is a mapping with `scenarios`.")
    plain = FILE.read(root, "file", shapes.Reading(faults)) or {}
    faults.raise_any()
    nodes = _items(root.items["scenarios"])
    scenarios = [_scenario(each, node, faults) for each, node in zip(plain["scenarios"], nodes, strict=True)]
    faults.raise_any()
    return scenarios


def _items(node: Node | None) -> list[Node]:
    return node.items if isinstance(node, ListNode) else []


def _scenario(scenario: dict[str, Any], node: Node, faults: Faults) -> Scenario:
    nodes = node.items if isinstance(node, MappingNode) else {}
    events = [
        _event(each, at, faults)
        for each, at in zip(scenario.get("session", []), _items(nodes.get("session")), strict=True)
    ]
    expect = scenario["expect"]
    stray = [key for key in (*_OF_CALLS, *_OF_A_CALL) if key in scenario or key in expect]
    if "call" not in scenario and stray:
        faults.add(node.line, f"`{stray[0]}` is about a call, and this scenario has no `call`.")
    if not expect:
        faults.add(node.line, "`expect` expects nothing: say at least one thing, such as `decision: deny`.")
    call = None
    if "call" in scenario:
        call = _parse_event({**scenario, EventKind.CALLED: scenario["call"]}, EventKind.CALLED, node.line)
    known_events = tuple(event for event in events if event is not None)
    expectation = parse(Expected, expect)
    return Scenario(name=scenario["name"], line=node.line, events=known_events, call=call, expect=expectation)


def _event(event: dict[str, Any], node: Node, faults: Faults) -> ScenarioEvent | None:
    kinds = [kind for kind in EventKind if kind in event]
    if len(kinds) != 1:
        faults.add(node.line, f"an event is exactly one of {', '.join(EventKind)}.")
        return None
    kind = kinds[0]
    for key, belongs in _BELONGS.items():
        if key in event and kind not in belongs:
            faults.add(node.line, f"`{key}` is not a key of the event `{kind}`; it belongs to {', '.join(belongs)}.")
    if kind is EventKind.IGNORED and not event[kind]:
        faults.add(node.line, "`ignored` is true, or not there.")
    return _parse_event(event, kind, node.line)


def _parse_event(event: dict[str, Any], kind: EventKind, line: int) -> ScenarioEvent:
    values = {**event, "kind": kind, "line": line, "text": str(event[kind]), "answers": event.get("with", {})}
    return parse(ScenarioEvent, values)


def play(atlases: CompiledAtlases, scenario: Scenario) -> ScenarioOutcome:
    session = _Session(atlases)
    for event in scenario.events:
        session.live(event)
    results = session.found(session.call(scenario.call) if scenario.call is not None else None)
    faults = [*session.faults, *_differences(scenario, results)]
    return ScenarioOutcome(name=scenario.name, line=scenario.line, faults=faults, found=results)


class _Session:
    def __init__(self, atlases: CompiledAtlases) -> None:
        self.atlases, self.now = atlases, BEGINS
        self.state: GateState = NOTHING_YET
        self.faults: list[str] = []
        self._boundary()

    def _boundary(self, **moment: Any) -> None:
        self.state = at_boundary(self.atlases, self.state, GateInput(now=self.now, **moment)).state

    def live(self, event: ScenarioEvent) -> None:
        match event.kind:
            case EventKind.SAID:
                self._boundary(inputs=(event.text,))
            case EventKind.MINUTES:
                self.now += timedelta(minutes=event.minutes)
                self._boundary()
            case EventKind.FAILED:
                self._boundary(errors=(event.text,))
            case EventKind.TRIGGERED:
                self._boundary(custom=frozenset(gate.key for gate in self.atlases.named(event.text)))
            case EventKind.REQUESTED:
                self.state = requested(self.atlases, self.state, [event.text], self.now).state
            case EventKind.IGNORED:
                self.state = ignored(self.atlases, self.state, self.now).state
            case EventKind.ANSWERED:
                self._answer(event)
            case EventKind.CALLED | EventKind.APPROVED:
                self._run(event, approved=event.kind is EventKind.APPROVED)

    def _answer(self, event: ScenarioEvent) -> None:
        target = meant(self.atlases, self.state, event.text, None)
        checks = custom_checks(target.gate, event.answers) if target.gate is not None else []
        ids = [question.question_id for question, _ in checks]
        custom = {id: event.objections.get(id) for id in ids}
        outcome = answer(self.atlases, self.state, target, event.answers, custom, self.now)
        self.state = outcome.state
        if outcome.valid is not event.accepted:
            wrong = outcome.told.get("error") or "; ".join(
                f"{id}: {what}" for id, what in outcome.told.get("faults", {}).items()
            )
            message = f"is not accepted: {wrong}" if not outcome.valid else "is accepted, and should not be"
            self.faults.append(f"line {event.line}: the answer to `{event.text}` {message}")

    def call(self, event: ScenarioEvent, *, approved: bool = False) -> Ruling:
        call = _gated_call(event, approved)
        ruling = judge(self.atlases, self.state, call, self.now)
        self.state = ruling.state
        if ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            self.state = shown(self.atlases, self.state, call, ruling.people, self.now).state
        return ruling

    def _run(self, event: ScenarioEvent, *, approved: bool) -> None:
        ruling = self.call(event)
        if approved and ruling.verdict is PolicyVerdict.REQUIRES_APPROVAL:
            ruling = self.call(event, approved=True)
        if ruling.verdict is PolicyVerdict.ALLOW:
            self.state = ran(self.atlases, self.state, _gated_call(event, approved), self.now).state
            self._boundary(finished=(event.text,))
        elif approved:
            message = f"an approval does not let `{event.text}` run: {ruling.reason or ruling.rule}"
            self.faults.append(f"line {event.line}: {message}")

    def found(self, ruling: Ruling | None) -> dict[str, Any]:
        state = self.state
        work = EvaluationRun(self.atlases, state, self.now)
        keys = [question.gate for question in (*state.asks, *(ruling.asks if ruling is not None else ()))]
        gates = [self.atlases.gates[key] for key in keys if key in self.atlases.gates]
        values: dict[str, Any] = {}
        if ruling is not None:
            values = {
                "decision": ruling.verdict, "rule": ruling.rule, "reason": ruling.reason,
                "gates": [gate.gate_id for gate in ruling.fired],
                "people": [gate.gate_id for gate in ruling.people],
            }  # fmt: skip
        return {
            **values,
            "questions": [question.question_id for gate in gates for question in gate.questions],
            "contexts": _plain(state.contexts),
            "guidance": _plain(state.guidance),
            "open": _plain(key for key in self.atlases.capabilities if work.is_open(key)),
            "shut": _plain(entry.gate for entry in state.shut),
        }


def _gated_call(event: ScenarioEvent, approved: bool) -> GatedCall:
    return GatedCall(
        action=event.text,
        arguments=event.arguments,
        risk=event.risk,
        approved=approved,
        call_id=f"line {event.line}",
        input_hash=hashlib.sha256(canonical(dict(event.arguments))).hexdigest(),
    )


def _plain(keys: Iterable[str]) -> list[str]:
    return sorted({key.rsplit("/", 1)[1] for key in keys})


def _differences(scenario: Scenario, results: Mapping[str, Any]) -> list[str]:
    expect, faults = scenario.expect, list[str]()
    for name in ("decision", "rule"):
        expected = getattr(expect, name)
        if expected is not None and results.get(name) != expected:
            faults.append(f"{name}: expected {expected}, and it is {results.get(name) or 'nothing'}")
    if expect.reason is not None and expect.reason.casefold() not in str(results.get("reason", "")).casefold():
        faults.append(f"reason: expected the words “{expect.reason}”, and it is “{results.get('reason', '')}”")
    for name in ("gates", "questions", "people", "contexts", "guidance", "open", "shut"):
        expected, actual = getattr(expect, name), results.get(name, [])
        if expected is None or (list(expected) == actual if name == "gates" else sorted(expected) == sorted(actual)):
            continue
        faults.append(f"{name}: expected {', '.join(expected) or 'none'}, and there is {', '.join(actual) or 'none'}")
    return faults
