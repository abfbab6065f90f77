"""What gates add to what the model reads: always made from the state alone, so a resumed job reads the same again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from cortex_plane.agents.model.tools import provider_name
from cortex_plane.gates.model.atlases import (
    ContextBlock,
    Gate,
    Guidance,
    GuidanceFormat,
    Question,
    ResponseType,
)
from cortex_plane.gates.model.gates import ANSWER, ActiveGuidance, GateState, Open, PromptParts
from cortex_plane.gates.rules.gate_index import CompiledAtlases

_EXPECTED = {
    ResponseType.TEXT: "a text",
    ResponseType.BOOLEAN: "true or false",
    ResponseType.ACKNOWLEDGMENT: "the word `understood`, if that is so",
    ResponseType.NUMBER: "a number",
    ResponseType.JSON: "an object",
}

MAX_CARD = 4000
"""Characters of what people are asked by gates about one call. Nothing of it is ever cut: who approves has read all of it."""

MAX_ASKED = 200_000
"""Bytes of the questions that programs are told at once, besides those of the first gate."""


def card_of(name: str, title: str, asked: Iterable[tuple[str, str | None]]) -> str:
    """What a person is asked by one gate: questions, each with its hint."""
    lines = (f"- {hinted(question, hint)}" for question, hint in asked)
    return "\n".join([f"By approving you pass the gate {name} ({title}):", *lines])


def hinted(question: str, hint: str | None) -> str:
    return f"{question} ({hint})" if hint else question


def card(gates: Iterable[Gate]) -> str:
    """Whoever approves confirms all of it."""
    return "\n".join(
        card_of(gate.gate_id, gate.name, ((each.question, each.hint) for each in gate.questions))
        for gate in gates
    )


def name_of(atlases: CompiledAtlases, key: str) -> str:
    """How an agent names a gate: by its plain id, where no other atlas of its session has the same."""
    gate = atlases.gates[key]
    return gate.gate_id if len(atlases.named(gate.gate_id)) == 1 else key


def guides_of(atlases: CompiledAtlases, state: GateState) -> list[tuple[Gate, Guidance, ActiveGuidance]]:
    """The guidance that is given, the most important first; what is as important, in the order in which it came."""
    found = [
        (gate, gate.guidance, given)
        for key, given in state.guidance.items()
        if (gate := atlases.gates.get(key)) and gate.guidance
    ]
    return sorted(found, key=lambda each: (-each[1].priority, each[2].at, each[0].key))


def blocks_of(atlases: CompiledAtlases, state: GateState) -> list[tuple[str, ContextBlock, ActiveGuidance]]:
    found = [
        (key, atlases.contexts[key], given)
        for key, given in state.contexts.items()
        if key in atlases.contexts
    ]
    return sorted(found, key=lambda each: (-each[1].priority, each[2].at, each[0]))


def prompt_parts(atlases: CompiledAtlases, state: GateState) -> PromptParts:
    guides = [guidance for _, guidance, _ in guides_of(atlases, state)]
    high = [each.content for each in guides if each.format is GuidanceFormat.SYSTEM_INSTRUCTION]
    rest = [each.content for each in guides if each.format is not GuidanceFormat.SYSTEM_INSTRUCTION]
    known = [f"## {each.name}\n{each.content}" for _, each, _ in blocks_of(atlases, state)]
    return PromptParts(
        instructions="\n\n".join(high),
        knowledge="\n\n".join([*known, *rest]),
        questions=questions(atlases, state.asks),
    )


def questions(atlases: CompiledAtlases, waiting: Iterable[Open]) -> str:
    """As the model is asked."""
    asked = [
        _asked(atlases.gates[each.gate], name_of(atlases, each.gate), each)
        for each in waiting
        if each.gate in atlases.gates
    ]
    if not asked:
        return ""
    how = f"Answer with the tool `{provider_name(ANSWER)}`; until then nothing else is accepted."
    return "\n\n".join([*asked, how])


def _asked(gate: Gate, name: str, which: Open) -> str:
    before = f"`{which.action}` runs (call `{which.call}`)" if which.call else "you go on"
    lines = [f"The gate `{name}` ({gate.name}) asks before {before}:"]
    lines += [_line(question) for question in gate.questions]
    if which.fault:
        lines.append(f"Your last answer was not accepted: {which.fault}")
    return "\n".join(lines)


def _line(question: Question) -> str:
    expected = _EXPECTED.get(question.response_type) or f"one of {', '.join(question.options)}"
    optional = "" if question.required else ", optional"
    asked = hinted(question.question, question.hint)
    return f"- {question.question_id}: {asked} [{expected}{optional}]"


def asked_of(gate: Gate, which: Open) -> dict[str, Any]:
    """The same for programs. Its guidance is only named: what it says is told with the contexts, once it is given."""
    return {
        "gate": gate.gate_id, "atlas": gate.atlas_id, "name": gate.name, "call": which.call or None,
        "action": which.action or None, "attempts_left": gate.max_attempts - which.attempts,
        "fault": which.fault or None, "guidance": gate.key if gate.guidance else None,
        "questions": questions_of(gate),
    }  # fmt: skip


def questions_of(gate: Gate) -> list[dict[str, Any]]:
    return [
        {
            "question_id": each.question_id, "question": each.question, "response_type": each.response_type,
            "required": each.required, "hint": each.hint, "options": list(each.options), "schema": each.schema,
        }
        for each in gate.questions
    ]  # fmt: skip


def asked_of_all(atlases: CompiledAtlases, waiting: Iterable[Open]) -> list[dict[str, Any]]:
    """The first in full, and the others as far as there is room; the rest is named, and can be read when its turn comes."""
    found = [asked_of(atlases.gates[each.gate], each) for each in waiting if each.gate in atlases.gates]
    room = MAX_ASKED
    for number, asked in enumerate(found):
        room -= len(orjson.dumps(asked["questions"]))
        if room < 0 < number:
            asked["more_questions"] = len(asked["questions"])
            asked["questions"] = []
    return found
