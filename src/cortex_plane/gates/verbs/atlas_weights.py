"""How much memory compiled atlases take, counted from what is in them. Rather more than there is than less."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from sys import getsizeof
from typing import Any

from cortex_plane.gates.model.atlases import Atlas, Gate, Question
from cortex_plane.gates.rules.gate_index import CompiledAtlases

ATLAS = 10_000
"""Bytes of an atlas without anything in it, and of a set of them."""
GATE = 480
QUESTION = 300
GUIDANCE = 160
ENTRY = 240
"""A capability, a context, a policy or an action."""
INDEXED_GATE = 520
INDEXED_ENTRY = 420
OF_CAPABILITY = 460
"""Where a gate stands before a capability."""
POINTER = 16
KEY = 90
"""A name that is made of two."""


def weight_of(atlas: Atlas) -> int:
    total = ATLAS
    for gate in atlas.gates:
        total += _gate(gate)
    for capability in atlas.capabilities:
        total += ENTRY + _texts((capability.capability_id, capability.name, *capability.actions))
    for context in atlas.contexts:
        total += ENTRY + _texts((context.context_id, context.name, context.content))
    for policy in atlas.policies:
        total += ENTRY + _texts((policy.policy_id, policy.reason, *policy.actions))
    for action in atlas.actions:
        total += ENTRY + _texts((action.action_id, action.name, action.description))
        total += _json(action.parameters_schema)
    return total


def _gate(gate: Gate) -> int:
    total = GATE + _texts((gate.gate_id, gate.name, *gate.trigger.patterns, *gate.trigger.capability_ids))
    total += _json(gate.trigger.params)
    for effect in (
        gate.contexts, gate.unlock_capabilities, gate.lock_capabilities, gate.allow_actions, gate.deny_actions,
    ):  # fmt: skip
        total += _texts(effect)
    if gate.guidance is not None:
        total += GUIDANCE + _texts((gate.guidance.content, *gate.guidance.labels))
    return total + sum(map(_question, gate.questions))


def _question(question: Question) -> int:
    rules = question.validation
    words = (*question.options, *rules.must_contain, *rules.must_not_contain)
    texts = (question.question_id, question.question, question.hint or "", rules.pattern or "", *words)
    return QUESTION + _texts(texts) + _json(question.schema)


def _texts(texts: Iterable[str]) -> int:
    return sum(getsizeof(each) + POINTER for each in texts)


def _json(value: Any) -> int:
    inside: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inside = (*value.keys(), *value.values())
    elif isinstance(value, list | tuple):
        inside = value
    return 0 if value is None else getsizeof(value) + POINTER + sum(map(_json, inside))


def weight_of_index(compiled: CompiledAtlases) -> int:
    """What is made of atlases beside themselves."""
    total = ATLAS + INDEXED_GATE * len(compiled.gates)
    total += _texts(compiled.gates)
    for entries in (compiled.contexts, compiled.capabilities):
        total += INDEXED_ENTRY * len(entries) + _texts(entries)
    for atlas in compiled.atlases:
        total += INDEXED_ENTRY * (len(atlas.policies) + len(atlas.actions))
    total += OF_CAPABILITY * sum(len(gate.trigger.capability_ids) for gate in compiled.gates.values())
    total += KEY * sum(index.size for index in compiled.globs)
    total += sum(index.room for index in compiled.globs)
    return total + compiled.keywords.room
