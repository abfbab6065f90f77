"""Scenario files: YAML into scenarios, read as strictly as atlases. docs/guides/steward-bench.md has the format."""

from __future__ import annotations

from typing import Any

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.rules.scenarios import MAX_EVENTS, MAX_SCENARIOS, EventKind, Expected, Scenario, ScenarioEvent
from cortex_plane.kernel.documents import Bounds, Faults, ListNode, MappingNode, Node, read_document
from cortex_plane.kernel.shapes import (
    LINE,
    Amount,
    Field,
    Flag,
    JsonObject,
    ListOf,
    MapOf,
    OneOf,
    Reading,
    Record,
    Text,
)
from cortex_plane.policies.model.policies import PolicyVerdict

MAX_FILE_BYTES = 1024 * 1024
HINT = "Correct the file and try again; nothing was tried. Its format is in docs/guides/steward-bench.md."
_ID = Text(200, LINE, "an id")
_SAID = Text(100_000)
_IDS = ListOf(_ID, most=1000)
_EVENT = {
    EventKind.SAID: Field(_SAID, "What a person says."),
    EventKind.ANSWERED: Field(_ID, "The gate that the agent answers."),
    EventKind.IGNORED: Field(Flag(), "The agent says something else instead of answering."),
    EventKind.CALLED: Field(_ID, "An action that the agent calls; it runs where it is allowed."),
    EventKind.APPROVED: Field(_ID, "An action that the agent calls and people approve."),
    EventKind.MINUTES: Field(Amount(0, 525_600), "So many minutes pass."),
    EventKind.REQUESTED: Field(_ID, "What the agent asks its stewards for."),
    EventKind.FAILED: Field(_SAID, "Something went wrong."),
    EventKind.TRIGGERED: Field(_ID, "The gate whose custom trigger fires."),
}
_OF_CALLS = {
    "arguments": Field(JsonObject(), "Of the call."),
    "risk": Field(OneOf(tuple(Risk)), "The tool's own risk; low where it is left out."),
}
_OF_ANSWERS = {
    "with": Field(JsonObject(), "The answers, by question."),
    "accepted": Field(Flag(), "false: the answer must be refused."),
    "objections": Field(MapOf(_ID, _SAID, most=100), "What the app's validators object to, by question."),
}
EVENT = Record("event", "an event", {**{str(kind): each for kind, each in _EVENT.items()}, **_OF_CALLS, **_OF_ANSWERS})
EXPECT = Record("expect", "what is expected", {
    "decision": Field(OneOf(tuple(PolicyVerdict)), "Of the call."),
    "rule": Field(_ID, "What decided."),
    "reason": Field(_SAID, "Words that the reason has."),
    "gates": Field(_IDS, "That fire for the call, in their order."),
    "questions": Field(_IDS, "That wait for the agent."),
    "people": Field(_IDS, "Gates that a person would pass."),
    "contexts": Field(_IDS, "That the agent knows."),
    "guidance": Field(_IDS, "The gates whose guidance the agent has."),
    "open": Field(_IDS, "Capabilities."),
    "shut": Field(_IDS, "Gates that nobody passes any more."),
})  # fmt: skip
SCENARIO = Record("scenario", "a scenario", {
    "name": Field(Text(200, LINE, "a line of text"), "For the report.", required=True),
    "session": Field(ListOf(EVENT, most=MAX_EVENTS), "What happened before, in order."),
    "call": Field(_ID, "The action that is looked at."),
    **_OF_CALLS,
    "expect": Field(EXPECT, "What must come of it.", required=True),
})  # fmt: skip
FILE = Record("file", "a scenario file", {
    "scenarios": Field(ListOf(SCENARIO, least=1, most=MAX_SCENARIOS), "What is tried.", required=True),
})  # fmt: skip
_BELONGS = {**dict.fromkeys(_OF_CALLS, (EventKind.CALLED, EventKind.APPROVED)),
            **dict.fromkeys(_OF_ANSWERS, (EventKind.ANSWERED,))}  # fmt: skip
_OF_A_CALL = ("decision", "rule", "reason", "gates", "people")


def read(text: str, *, name: str = "scenarios.yaml") -> list[Scenario]:
    """Raises ``InvalidInput`` that names every line at fault."""
    faults = Faults(code="invalid_scenarios", hint=HINT, name=name)
    root = read_document(text, faults, Bounds(MAX_FILE_BYTES), "a scenario file is a mapping with `scenarios`.")
    plain = FILE.read(root, "file", Reading(faults)) or {}
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
    if "call" not in scenario:
        stray = [key for key in (*_OF_CALLS, *_OF_A_CALL) if key in scenario or key in expect]
        if stray:
            faults.add(node.line, f"`{stray[0]}` is about a call, and this scenario has no `call`.")
    if not expect:
        faults.add(node.line, "`expect` expects nothing: say at least one thing, such as `decision: deny`.")
    call = _call(EventKind.CALLED, scenario["call"], scenario, node.line) if "call" in scenario else None
    return Scenario(
        name=scenario["name"], line=node.line, events=tuple(event for event in events if event is not None), call=call,
        expect=_expected(expect),
    )  # fmt: skip


def _expected(expect: dict[str, Any]) -> Expected:
    values: dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in expect.items()}
    if "decision" in values:
        values["decision"] = PolicyVerdict(values["decision"])
    return Expected(**values)


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
    if kind is EventKind.ANSWERED:
        return ScenarioEvent(
            kind=kind, line=node.line, text=event[kind], answers=event.get("with", {}),
            accepted=event.get("accepted", True), objections=event.get("objections", {}),
        )  # fmt: skip
    if kind is EventKind.MINUTES:
        return ScenarioEvent(kind=kind, line=node.line, minutes=event[kind])
    if kind in (EventKind.CALLED, EventKind.APPROVED):
        return _call(kind, event[kind], event, node.line)
    return ScenarioEvent(kind=kind, line=node.line, text=str(event[kind]))


def _call(kind: EventKind, name: str, event: dict[str, Any], line: int) -> ScenarioEvent:
    return ScenarioEvent(
        kind=kind, line=line, text=name, arguments=event.get("arguments", {}), risk=Risk(event.get("risk", Risk.LOW))
    )  # fmt: skip
