"""Reads scenario files: what a steward expects of an atlas and of the policies beside it. docs/guides/steward-bench.md has the
format, and `calls/rules/bench.py` plays them."""

from __future__ import annotations

from typing import Any

from cortex_plane.gates.files.checks import PLANE
from cortex_plane.gates.model.scenarios import (
    MAX_FILE_BYTES,
    EventKind,
    Expected,
    Scenario,
    ScenarioEvent,
    ScenarioSetting,
)
from cortex_plane.kernel import shapes
from cortex_plane.kernel.documents import Bounds, Faults, ListNode, MappingNode, Node, read_document
from cortex_plane.kernel.fields import Risk, parse
from cortex_plane.policies.model.policies import PolicyVerdict
from cortex_plane.policies.model.versions import MAX_VOTES
from cortex_plane.sessions.model.sessions import SessionKind

MAX_SCENARIOS = 1000
MAX_EVENTS = 1000
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
    "risk": shapes.Field(shapes.OneOf(tuple(Risk)), "Of the call, where it is higher than what its tool declares."),
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
    "votes": shapes.Field(shapes.Amount(1, MAX_VOTES, whole=True), "How many people must approve."),
    "reason": shapes.Field(_SAID, "Words that the reason has."),
    "gates": shapes.Field(_IDS, "That fire for the call, in their order."),
    "questions": shapes.Field(_IDS, "That wait for the agent."),
    "people": shapes.Field(_IDS, "Gates that a person would pass."),
    "contexts": shapes.Field(_IDS, "That the agent knows."),
    "guidance": shapes.Field(_IDS, "The gates whose guidance the agent has."),
    "open": shapes.Field(_IDS, "Capabilities."),
    "shut": shapes.Field(_IDS, "Gates that nobody passes any more."),
})  # fmt: skip
_TOOL = shapes.Record("tool", "a tool", {
    "risk": shapes.Field(shapes.OneOf(tuple(Risk)), "As it declares; left out: it declares none."),
    "read_only": shapes.Field(shapes.Flag(), "It changes nothing. Left out: false."),
})  # fmt: skip
_SETTING = {
    "agent": shapes.Field(_ID, "The slug of the agent."),
    "teams": shapes.Field(shapes.ListOf(_ID, most=2), "Its team, and the parent of that. Left out: main."),
    "session_kind": shapes.Field(
        shapes.OneOf((SessionKind.CONVERSATION, SessionKind.PROGRAMMATIC)), "Left out: conversation."
    ),
    "policies": shapes.Field(_ID, "The org's policy file, beside this one. Left out: it has none."),
    "tools": shapes.Field(shapes.MapOf(_ID, _TOOL), "What tools declare, by name."),
}
SCENARIO = shapes.Record("scenario", "a scenario", {
    "name": shapes.Field(shapes.Text(200, shapes.LINE, "a line of text"), "For the report.", required=True),
    "session": shapes.Field(shapes.ListOf(EVENT, most=MAX_EVENTS), "What happened before, in order."),
    "call": shapes.Field(_ID, "The action that is looked at."),
    **_OF_CALLS,
    **_SETTING,
    "expect": shapes.Field(EXPECT, "What must come of it.", required=True),
})  # fmt: skip
FILE = shapes.Record("file", "a scenario file", {
    **_SETTING,
    "scenarios": shapes.Field(shapes.ListOf(SCENARIO, least=1, most=MAX_SCENARIOS), "What is tried.", required=True),
})  # fmt: skip
_BELONGS = {**dict.fromkeys(_OF_CALLS, (EventKind.CALLED, EventKind.APPROVED)),
            **dict.fromkeys(_OF_ANSWERS, (EventKind.ANSWERED,))}  # fmt: skip
_OF_A_CALL = ("decision", "rule", "votes", "reason", "gates", "people")


def read(text: str, *, name: str = "scenarios.yaml") -> list[Scenario]:
    """Raises ``InvalidInput`` that names every line at fault."""
    faults = Faults(code="invalid_scenarios", hint=HINT, name=name)
    root = read_document(text, faults, Bounds(MAX_FILE_BYTES), "a scenario file is a mapping with `scenarios`.")
    plain = FILE.read(root, "file", shapes.Reading(faults)) or {}
    faults.raise_any()
    nodes = _items(root.items["scenarios"])
    scenarios = [_scenario(each, plain, node, faults) for each, node in zip(plain["scenarios"], nodes, strict=True)]
    faults.raise_any()
    return scenarios


def _items(node: Node | None) -> list[Node]:
    return node.items if isinstance(node, ListNode) else []


def _scenario(scenario: dict[str, Any], file: dict[str, Any], node: Node, faults: Faults) -> Scenario:
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
        _require_action(call, faults)
    known_events = tuple(event for event in events if event is not None)
    expectation = parse(Expected, expect)
    settings = {key: values[key] for values in (file, scenario) for key in _SETTING if key in values}
    settings["tools"] = {**file.get("tools", {}), **scenario.get("tools", {})}
    return Scenario(
        name=scenario["name"], line=node.line, setting=parse(ScenarioSetting, settings), events=known_events, call=call,
        expect=expectation,
    )  # fmt: skip


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
    parsed = _parse_event(event, kind, node.line)
    if kind in (EventKind.CALLED, EventKind.APPROVED):
        _require_action(parsed, faults)
    return parsed


def _require_action(call: ScenarioEvent, faults: Faults) -> None:
    if call.text.startswith(PLANE):
        faults.add(call.line, f"`{call.text}` is a tool of the plane itself, which no atlas governs: leave it out.")


def _parse_event(event: dict[str, Any], kind: EventKind, line: int) -> ScenarioEvent:
    values = {**event, "kind": kind, "line": line, "text": str(event[kind]), "answers": event.get("with", {})}
    return parse(ScenarioEvent, values)
