"""What one version of an atlas has otherwise than another."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cortex_plane.gates.files.atlases import MAX_CHANGES, difference
from cortex_plane.gates.model.atlases import (
    Action,
    AnswerValidation,
    Atlas,
    AtlasDiff,
    AtlasPolicy,
    AtlasPolicyType,
    Capability,
    ContextBlock,
    Gate,
    GateBudget,
    GateQuestion,
    Guidance,
    Mode,
    ResponseType,
    Steward,
    Trigger,
    TriggerType,
)
from cortex_plane.kernel.fields import Risk

SURE = GateQuestion(question_id="sure", question="Sure?", response_type=ResponseType.BOOLEAN)
GATE = Gate(
    gate_id="delete", atlas_id="com.acme", name="Delete", trigger=Trigger(type=TriggerType.ACTION_PRE, patterns=("*.delete",)),
    mode=Mode.BLOCKING, priority=800, questions=(SURE,),
)  # fmt: skip
FIRST = Atlas(
    atlas_id="com.acme", version="1", name="Acme", digest="aa", steward=Steward(id="s", name="S"), gates=(GATE,),
    contexts=(ContextBlock(context_id="intro", name="Intro", content="You work here."),),
    capabilities=(Capability(capability_id="tickets", name="Tickets", actions=("ticket.get",)),),
    policies=(AtlasPolicy(policy_id="ask", type=AtlasPolicyType.REQUIRES_APPROVAL, actions=("ticket.delete",)),),
    actions=(Action(action_id="ticket.get", name="Get"),),
)  # fmt: skip


def compared(**changes: Any) -> AtlasDiff:
    return difference(FIRST, replace(FIRST, version="2", digest="bb", **changes))


def told(found: AtlasDiff) -> list[tuple[str, str, str, dict[str, tuple[Any, Any]]]]:
    return [
        (each.change, each.kind, each.id, {field.field: (field.before, field.after) for field in each.fields})
        for each in found.changes
    ]


def with_gate(**changes: Any) -> dict[str, Any]:
    return {"gates": (replace(GATE, **changes),)}


@pytest.mark.proves("D.324")
def test_the_same_content_differs_in_nothing() -> None:
    found = compared()
    assert (found.before, found.after, found.added, found.removed, found.changed) == ("1", "2", 0, 0, 0)
    assert found.changes == []


@pytest.mark.proves("D.324")
@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"name": "New"}, ("changed", "atlas", "com.acme", {"name": ("Acme", "New")})),
        (
            {"steward": Steward(id="s", name="S", requests_per_minute=5)},
            ("changed", "atlas", "com.acme", {"steward.requests_per_minute": (None, 5)}),
        ),
        (
            {"budget": GateBudget(max_checkpoints_per_input=3)},
            ("changed", "atlas", "com.acme", {"budget.max_checkpoints_per_input": (None, 3)}),
        ),
        (with_gate(mode=Mode.ADVISORY), ("changed", "gate", "delete", {"mode": ("blocking", "advisory")})),
        (
            with_gate(trigger=Trigger(type=TriggerType.ACTION_PRE, patterns=("user.*",))),
            ("changed", "gate", "delete", {"trigger.patterns": (["*.delete"], ["user.*"])}),
        ),
        (
            {"contexts": (ContextBlock(context_id="intro", name="Intro", content="Be kind."),)},
            ("changed", "context", "intro", {"content": ("You work here.", "Be kind.")}),
        ),
        ({"contexts": ()}, ("removed", "context", "intro", {})),
        (
            {"capabilities": (Capability(capability_id="tickets", name="Tickets", actions=("*",)),)},
            ("changed", "capability", "tickets", {"actions": (["ticket.get"], ["*"])}),
        ),
        (
            {"policies": (AtlasPolicy(policy_id="ask", type=AtlasPolicyType.DENY, actions=("ticket.delete",)),)},
            ("changed", "policy", "ask", {"type": ("requires_approval", "deny")}),
        ),
        (
            {"actions": (Action(action_id="ticket.get", name="Get", risk_tier=Risk.HIGH),)},
            ("changed", "action", "ticket.get", {"risk_tier": ("low", "high")}),
        ),
        (
            with_gate(questions=(replace(SURE, validation=AnswerValidation(min_length=3)),)),
            ("changed", "question", "delete/sure", {"validation.min_length": (None, 3)}),
        ),
    ],
)
def test_each_thing_is_compared_field_by_field(changes: dict[str, Any], expected: Any) -> None:
    assert told(compared(**changes)) == [expected]


@pytest.mark.proves("D.324")
def test_what_comes_and_goes_is_counted() -> None:
    other = replace(GATE, gate_id="ban", questions=())
    why = GateQuestion(question_id="why", question="Why?", response_type=ResponseType.TEXT)
    found = compared(gates=(replace(GATE, questions=(why, SURE)), other), actions=())
    assert told(found) == [
        ("added", "gate", "ban", {}),
        ("changed", "gate", "delete", {"questions": (["sure"], ["why", "sure"])}),
        ("added", "question", "delete/why", {}),
        ("removed", "action", "ticket.get", {}),
    ]
    assert (found.added, found.removed, found.changed) == (2, 1, 1)


@pytest.mark.proves("D.324")
def test_guidance_that_comes_is_told_field_by_field() -> None:
    (change,) = compared(**with_gate(guidance=Guidance(content="Careful."))).changes
    assert {field.field: field.after for field in change.fields}["guidance.content"] == "Careful."


@pytest.mark.proves("D.324")
def test_long_texts_are_cut_and_still_differ() -> None:
    long = "x" * 100_000
    first = replace(FIRST, contexts=(ContextBlock(context_id="c", name="C", content=long + "a"),))
    second = replace(FIRST, contexts=(ContextBlock(context_id="c", name="C", content=long + "b"),))
    ((field,),) = (each.fields for each in difference(first, second).changes)
    assert field.before != field.after
    assert len(field.before) < 2100
    many = tuple(f"a{n}" for n in range(1000))
    first = replace(FIRST, capabilities=(Capability(capability_id="c", name="C", actions=many),))
    second = replace(FIRST, capabilities=(Capability(capability_id="c", name="C", actions=(*many, "z")),))
    ((field,),) = (each.fields for each in difference(first, second).changes)
    assert field.before != field.after
    assert len(field.before) == 101


@pytest.mark.proves("D.324")
def test_as_many_as_there_are_is_counted_and_not_all_listed() -> None:
    gates = tuple(replace(GATE, gate_id=f"g{number}", questions=()) for number in range(MAX_CHANGES + 7))
    found = compared(gates=(GATE, *gates))
    assert (found.added, len(found.changes)) == (MAX_CHANGES + 7, MAX_CHANGES)
