"""Answers to a gate's questions, checked in code. A model says what it likes; only what holds here counts."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from cortex_plane.gates.model.atlases import Gate, OnInvalid, Question, ResponseType
from cortex_plane.gates.rules.keywords import expression, writable
from cortex_plane.kernel.plain_words import lookalike, normal, normal_word
from cortex_plane.kernel.schemas import Unusable, compiled, faults

MAX_ANSWER = 20_000
"""Characters of a text, where its question names no other limit."""
MAX_MATCHED = 5_000
"""Characters of a text that must match a pattern: what searching all answers to one gate costs has an end."""
MAX_STRANGERS = 5
"""Answers to questions that nobody asked, of which is told."""
UNDERSTOOD = frozenset(
    {
        "understood", "i understand", "i understood", "yes i understand", "acknowledged", "i acknowledge",
        "i acknowledge this", "yes understood", "i agree", "confirmed", "i confirm",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class Fault:
    """What is wrong with one answer, and what follows from it."""

    question_id: str
    said: str
    on_invalid: OnInvalid


def custom_checks(gate: Gate, answers: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """What must be asked of code before the answers are judged: question, validator, answer."""
    return [
        (each.question_id, each.validation.custom_validator, answers[each.question_id])
        for each in gate.questions
        if each.validation.custom_validator is not None and answers.get(each.question_id) is not None
    ]


def check(gate: Gate, answers: Mapping[str, Any], custom: Mapping[str, str | None]) -> list[Fault]:
    """Everything that is wrong. ``custom``: what validators said, None where they had nothing to object."""
    found: list[Fault] = []
    known = {question.question_id for question in gate.questions}
    for stranger in sorted(map(str, set(answers) - known))[:MAX_STRANGERS]:
        asked = ", ".join(question.question_id for question in gate.questions)
        found.append(
            Fault(
                question_id=stranger[:100],
                said=f"the gate asks no such question; it asks {asked}",
                on_invalid=OnInvalid.RETRY,
            )
        )
    for question in gate.questions:
        if answers.get(question.question_id) is None:
            # No answer is no wrong answer: whatever follows from a wrong one, this one is asked for again.
            if question.required:
                found.append(_fault(question, "it must be answered", OnInvalid.RETRY))
            continue
        said = _wrong(question, answers[question.question_id], custom)
        if said is not None:
            found.append(_fault(question, said, question.on_invalid))
    return found


def _fault(question: Question, said: str, on_invalid: OnInvalid) -> Fault:
    return Fault(question_id=question.question_id, said=said, on_invalid=on_invalid)


def _wrong(question: Question, value: Any, custom: Mapping[str, str | None]) -> str | None:
    text = _as_text(value)
    said = _too_long(question, text) or _CHECKS[question.response_type](question, value)
    if said is None and text is not None:
        said = _text_fault(question, text)
    name = question.validation.custom_validator
    if said is None and name is not None:
        said = custom.get(question.question_id, f"the validator `{name}` could not look at it")
    return said


def _as_text(value: Any) -> str | None:
    """What the rules for texts look at: a structured answer as it is written down."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else None


def _too_long(question: Question, text: str | None) -> str | None:
    rules = question.validation
    most = rules.max_length if rules.max_length is not None else MAX_ANSWER
    if rules.pattern is not None:
        most = min(most, MAX_MATCHED)
    if text is not None and len(text) > most:
        return f"it has {len(text)} characters, and may have {most} at most"
    return None


def _text_fault(question: Question, value: str) -> str | None:
    rules, length = question.validation, len(value.strip())
    if rules.min_length is not None and length < rules.min_length:
        return f"it has {length} characters, and needs at least {rules.min_length}"
    plain = normal(value) if rules.must_contain or rules.must_not_contain else ""
    for word in rules.must_contain:
        if normal_word(word) not in plain:
            return f"it must contain `{word}`"
    if rules.must_not_contain:
        shown = _Shown(plain)
        for word in rules.must_not_contain:
            if shown.holds(normal_word(word)):
                return f"it must not contain `{word}`"
    if rules.pattern is not None and expression(rules.pattern).search(writable(value)) is None:
        return f"it must match {rules.pattern}"
    return None


class _Shown:
    """A text in which forbidden words are looked for: also in letters that only look like theirs, and spelled out."""

    def __init__(self, plain: str) -> None:
        self._plain = plain
        self._alike = lookalike(plain)
        self._spelled = _spelled(self._alike)

    def holds(self, forbidden: str) -> bool:
        if not forbidden:
            return False
        word = lookalike(forbidden)
        return (
            forbidden in self._plain
            or word in self._alike
            or (" " not in word and len(word) > 3 and word in self._spelled)
        )


def _spelled(text: str) -> str:
    """What is written with the same sign between all letters, as in h.a.c.k; each in a line of its own."""
    found: list[str] = []
    for first in (0, 1):
        letters, signs, at = text[first::2], text[first + 1 :: 2], 0
        for sign, run in groupby(signs):
            number = sum(1 for _ in run)
            if number > 2 and not sign.isalnum():
                found.append(letters[at : at + number + 1])
            at += number
    return "\n".join(found)


def _text(question: Question, value: Any) -> str | None:
    if not isinstance(value, str):
        return "it must be a text"
    return "it is empty" if not normal(value) and question.required else None


def _boolean(question: Question, value: Any) -> str | None:
    if not isinstance(value, bool):
        return "it must be true or false"
    return None if value else f"`false` does not agree: {question.question}"


def _acknowledgment(question: Question, value: Any) -> str | None:
    if not isinstance(value, str):
        return "it must be the word understood"
    plain = _letters(value)
    if plain in UNDERSTOOD or (plain and plain == _letters(question.question)):
        return None
    return "it does not acknowledge; answer with the one word understood if that is so"


def _letters(value: str) -> str:
    return " ".join("".join(each if each.isalnum() else " " for each in normal(value)).split())


def _choice(question: Question, value: Any) -> str | None:
    if isinstance(value, str) and value in question.options:
        return None
    return f"it must be one of {', '.join(question.options)}"


def _number(question: Question, value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "it must be a number"
    if isinstance(value, float) and not math.isfinite(value):
        return "it must be a number"
    rules = question.validation
    if rules.minimum is not None and value < rules.minimum:
        return f"it must be at least {rules.minimum:g}"
    if rules.maximum is not None and value > rules.maximum:
        return f"it must be at most {rules.maximum:g}"
    return None


def _json(question: Question, value: Any) -> str | None:
    if question.schema is None:
        return None if isinstance(value, dict | list) else "it must be an object or a list"
    try:
        wrong = faults(compiled(dict(question.schema)), value)
    except Unusable as error:
        return str(error)
    return "; ".join(wrong[:3]) or None


_CHECKS = {
    ResponseType.TEXT: _text,
    ResponseType.BOOLEAN: _boolean,
    ResponseType.ACKNOWLEDGMENT: _acknowledgment,
    ResponseType.CHOICE: _choice,
    ResponseType.NUMBER: _number,
    ResponseType.JSON: _json,
}
