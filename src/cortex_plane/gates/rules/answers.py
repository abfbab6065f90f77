"""Answers to the questions of gates: what the agent said, and whether it is valid."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import groupby, islice
from typing import Any

from cortex_plane.gates.model import gates as gate_model
from cortex_plane.gates.model.atlases import MAX_ANSWER, Gate, GateQuestion, OnInvalid, ResponseType
from cortex_plane.gates.rules.effects import EvaluationRun
from cortex_plane.gates.rules.index import CompiledAtlases, expression, writable
from cortex_plane.gates.rules.prompts import name_of
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.schemas import Unusable, compiled, faults
from cortex_plane.kernel.text import lookalike, normal, normal_word
from cortex_plane.sessions.model.events import TraceType

MAX_MATCHED = 5_000
"""Characters of a text that must match a pattern: what searching all answers to one gate costs has an end."""
NO_ARGUMENTS: Mapping[str, str] = {}
MAX_STRANGERS = 5
"""Answers to questions that nobody asked, of which is told."""
UNDERSTOOD = frozenset(
    {
        "understood", "i understand", "i understood", "yes i understand", "acknowledged", "i acknowledge",
        "i acknowledge this", "yes understood", "i agree", "confirmed", "i confirm",
    }
)  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerFault:
    """What is wrong with one answer, and what follows from it."""

    question_id: str
    said: str
    on_invalid: OnInvalid


class Unchecked(str):
    """Why nobody could look at an answer. It is asked for again, whatever follows from a wrong one."""

    __slots__ = ()


def custom_checks(gate: Gate, answers: Mapping[str, Any]) -> list[tuple[GateQuestion, Any]]:
    """What validators must look at before the answers are judged: only what is right apart from that."""
    return [
        (question, value)
        for question in gate.questions
        if question.validation.custom_validator is not None
        and (value := answers.get(question.question_id)) is not None
        and _plain_fault(question, value) is None
    ]


def check(
    gate: Gate, answers: Mapping[str, Any], custom: Mapping[str, str | None], arguments: Mapping[str, str] = NO_ARGUMENTS
) -> list[AnswerFault]:  # fmt: skip
    """Everything that is wrong. ``custom``: what validators said, None where they had nothing to object; what is not there nobody
    looked at. ``arguments``: digests of the arguments of the stopped call."""
    names = [question.question_id for question in gate.questions]
    message = f"the gate asks no such question; it asks {', '.join(names)}"
    strangers = sorted(map(str, answers.keys() - set(names)))[:MAX_STRANGERS]
    faults = [AnswerFault(question_id=id[:100], said=message, on_invalid=OnInvalid.RETRY) for id in strangers]
    for question in gate.questions:
        id, value, on_invalid = question.question_id, answers.get(question.question_id), question.on_invalid
        wrong = _wrong(question, value, custom, arguments) if value is not None else None
        if value is None and question.required:
            # A missing answer is not a wrong one: it is asked for again, whatever follows from a wrong one.
            wrong, on_invalid = "it must be answered", OnInvalid.RETRY
        if isinstance(wrong, Unchecked):
            wrong, on_invalid = str(wrong), OnInvalid.RETRY
        if wrong is not None:
            faults.append(AnswerFault(question_id=id, said=wrong, on_invalid=on_invalid))
    return faults


def _wrong(
    question: GateQuestion, value: Any, custom: Mapping[str, str | None], arguments: Mapping[str, str]
) -> str | None:
    message = _plain_fault(question, value) or _unequal(question.validation.equals_argument, value, arguments)
    name = question.validation.custom_validator
    if message is None and name is not None:
        message = custom.get(question.question_id, Unchecked(f"the validator `{name}` could not look at it"))
    return message


def _plain_fault(question: GateQuestion, value: Any) -> str | None:
    text = _as_text(value)
    message = _too_long(question, text) or _CHECKS[question.response_type](question, value)
    return _text_fault(question, text) if message is None and text is not None else message


def _unequal(argument: str | None, value: Any, arguments: Mapping[str, str]) -> str | None:
    if argument is None:
        return None
    if argument not in arguments:
        return f"the call has no argument `{argument}`, which it must equal; make the call with it"
    with contextlib.suppress(InvalidInput):  # a value that no argument can have
        if gate_model.value_digest(value) == arguments[argument]:
            return None
    return f"it is not the argument `{argument}` of the call; where the argument is wrong, make the call with the right one"


def _as_text(value: Any) -> str | None:
    """What the rules for texts look at: a structured answer as it is written down."""
    if isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False)
    return value if isinstance(value, str) else None


def _too_long(question: GateQuestion, text: str | None) -> str | None:
    rules = question.validation
    most = rules.max_length if rules.max_length is not None else MAX_ANSWER
    if rules.pattern is not None:
        most = min(most, MAX_MATCHED)
    if text is not None and len(text) > most:
        return f"it has {len(text)} characters, and may have {most} at most"
    return None


def _text_fault(question: GateQuestion, value: str) -> str | None:
    rules, length = question.validation, len(value.strip())
    if rules.min_length is not None and length < rules.min_length:
        return f"it has {length} characters, and needs at least {rules.min_length}"
    plain = normal(value) if rules.must_contain or rules.must_not_contain else ""
    for word in rules.must_contain:
        if normal_word(word) not in plain:
            return f"it must contain `{word}`"
    for word in _forbidden_in(plain, rules.must_not_contain):
        return f"it must not contain `{word}`"
    if rules.pattern is not None and expression(rules.pattern).search(writable(value)) is None:
        return f"it must match {rules.pattern}"
    return None


def _forbidden_in(plain: str, words: Sequence[str]) -> Iterator[str]:
    """The words that stand in a normal text: also in letters that only look like theirs, and spelled out."""
    alike = lookalike(plain)
    spellings = _spelled(alike) if words else ""
    for word in words:
        forbidden = normal_word(word)
        twin = lookalike(forbidden)
        is_spelled = " " not in twin and len(twin) > 3 and twin in spellings
        if forbidden and (forbidden in plain or twin in alike or is_spelled):
            yield word


def _spelled(text: str) -> str:
    """What is written with the same sign between all letters, as in h.a.c.k; each in a line of its own."""
    words: list[str] = []
    for first in (0, 1):
        letters, signs, at = text[first::2], text[first + 1 :: 2], 0
        for sign, run in groupby(signs):
            number = sum(1 for _ in run)
            if number > 2 and not sign.isalnum():
                words.append(letters[at : at + number + 1])
            at += number
    return "\n".join(words)


def _text(question: GateQuestion, value: Any) -> str | None:
    if not isinstance(value, str):
        return "it must be a text"
    return "it is empty" if not normal(value) and question.required else None


def _boolean(question: GateQuestion, value: Any) -> str | None:
    if not isinstance(value, bool):
        return "it must be true or false"
    return None if value else f"`false` does not agree: {question.question}"


def _acknowledgment(question: GateQuestion, value: Any) -> str | None:
    if not isinstance(value, str):
        return "it must be the word understood"
    plain = _letters(value)
    if plain in UNDERSTOOD or (plain and plain == _letters(question.question)):
        return None
    return "it does not acknowledge; answer with the one word understood if that is so"


def _letters(value: str) -> str:
    return " ".join("".join(each if each.isalnum() else " " for each in normal(value)).split())


def _choice(question: GateQuestion, value: Any) -> str | None:
    if isinstance(value, str) and value in question.options:
        return None
    return f"it must be one of {', '.join(question.options)}"


def _number(question: GateQuestion, value: Any) -> str | None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or (isinstance(value, float) and not math.isfinite(value)):
        return "it must be a number"
    rules = question.validation
    if rules.minimum is not None and value < rules.minimum:
        return f"it must be at least {rules.minimum:g}"
    if rules.maximum is not None and value > rules.maximum:
        return f"it must be at most {rules.maximum:g}"
    return None


def _json(question: GateQuestion, value: Any) -> str | None:
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


MAX_TRACED = 100_000
"""Characters of the answers to one gate that the trail keeps, and at most `MAX_ANSWER` of each. What is cut is marked."""
MAX_TRACED_ANSWERS = 100
MAX_REMEMBERED = 4_000
"""Characters of the answers to one gate that people see with the calls it stood before."""
GOES_ON = (OnInvalid.WARN_AND_CONTINUE, OnInvalid.LOG_AND_CONTINUE)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTarget:
    """The open question that an answer is for; or why there is none."""

    gate: Gate | None = None
    which: gate_model.Open | None = None
    error: str = ""


def meant(atlases: CompiledAtlases, state: gate_model.GateState, gate_id: str, call: str | None) -> AnswerTarget:
    gates = {gate.key for gate in atlases.named(gate_id)}
    questions = [entry for entry in state.open if entry.gate in gates and (call is None or entry.call == call)]
    if len(questions) == 1:
        return AnswerTarget(gate=atlases.gates[questions[0].gate], which=questions[0])
    if questions:
        return AnswerTarget(error=_which(gate_id, questions))
    waiting = ", ".join(f"`{name_of(atlases, entry.gate)}`" for entry in state.open if entry.gate in atlases.gates)
    return AnswerTarget(error=f"`{gate_id[:100]}` does not wait for an answer. Gates that do: {waiting or 'none'}.")


def _which(gate_id: str, questions: list[gate_model.Open]) -> str:
    """What to say more exactly, where several are meant."""
    if len({question.gate for question in questions}) > 1:
        names = ", ".join(f"`{key}`" for key in sorted({question.gate for question in questions}))
        return f"`{gate_id[:100]}` is a gate of several atlases: name one in full: {names}."
    which = ", ".join(f"{question.call} ({question.action})" for question in questions)
    return f"`{gate_id[:100]}` stops several calls: name one with `call`: {which}."


def answer(
    atlases: CompiledAtlases,
    state: gate_model.GateState,
    target: AnswerTarget,
    answers: Mapping[str, Any],
    custom: Mapping[str, str | None],
    now: datetime,
) -> gate_model.Answered:
    """``custom``: what validators said of the answers that `answers.custom_checks` names."""
    if target.gate is None or target.which is None:
        return gate_model.Answered(state=state, valid=False, gate=None, told={"passed": False, "error": target.error})
    gate, which = target.gate, target.which
    work = EvaluationRun(atlases, state, now)
    wrong = check(gate, answers, custom, which.arguments)
    stops = [fault for fault in wrong if fault.on_invalid not in GOES_ON]
    result = "valid" if not wrong else "invalid" if stops else "accepted_with_faults"
    work.trace(
        TraceType.RESPONSE, gate, **_traced(answers), validation_result=result,
        **({"faults": {fault.question_id: fault.said for fault in wrong}} if wrong else {}),
        **({"action_id": which.action} if which.action else {}),
    )  # fmt: skip
    if stops:
        return _refused(work, gate, which, stops)
    work.open.remove(which)
    _forget_tries(work, gate, which)
    work.pass_gate(gate, guided=True)
    is_for_one = bool(which.call) and gate.trigger.type in gate_model.FOR_ONE_CALL
    about = {"action": which.action, "input_hash": which.input_hash} if is_for_one else {}
    if is_for_one:
        work.passes = [*work.passes, gate_model.Pass(gate=gate.key, **about)][-gate_model.MAX_PASSES :]
    own = {
        question.question_id: answers[question.question_id]
        for question in gate.questions
        if question.question_id in answers
    }
    shortened, cut = shorten(own, MAX_REMEMBERED, MAX_REMEMBERED)
    work.remember_answers(gate_model.GateAnswers(gate=gate.key, answers=shortened, cut=cut, **about))
    warnings = [fault.said for fault in wrong if fault.on_invalid is OnInvalid.WARN_AND_CONTINUE]
    reply = {"passed": True, "gate": gate.gate_id, **({"warning": warnings} if warnings else {}), **work.opened}
    reply["next"] = _next(work, which)
    return gate_model.Answered(state=work.state(), valid=True, gate=gate.gate_id, told=reply, traces=tuple(work.traces))


def _next(work: EvaluationRun, which: gate_model.Open) -> str:
    """What the agent does now: the gates that still stand before the call, or before the session, are named."""
    same = [entry for entry in work.open if (entry.call, entry.action) == (which.call, which.action)]
    waiting = [name_of(work.atlases, entry.gate) for entry in same if entry.gate in work.atlases.gates]
    if not waiting:
        return f"Now call `{which.action}` again with the same arguments." if which.call else "Go on."
    gates = f"{len(waiting)} more gate{'s' if len(waiting) > 1 else ''}"
    names = ", ".join(f"`{name}`" for name in waiting)
    verb = "stand" if len(waiting) > 1 else "stands"
    if which.call:
        return f"{gates} {verb} before `{which.action}`: {names}. Answer first, then call it again with the same arguments."
    return f"{gates} {'wait' if len(waiting) > 1 else 'waits'} for your answer before anything else: {names}."


def _refused(work: EvaluationRun, gate: Gate, which: gate_model.Open, stops: list[AnswerFault]) -> gate_model.Answered:
    faults = {fault.question_id: fault.said for fault in stops}
    reason = "; ".join(f"{id}: {message}" for id, message in faults.items())[:1000]
    reply: dict[str, Any] = {"passed": False, "gate": gate.gate_id, "faults": faults}
    if any(fault.on_invalid is OnInvalid.BLOCK for fault in stops):
        _, for_all = _count(work, gate, which)
        work.shut_gate(gate, which, reason, for_all=for_all)
        reply["next"] = "The gate is shut. Do not try again."
    else:
        remaining = _again(work, gate, which, reason)
        again = f"Answer again; {remaining} more {'try' if remaining == 1 else 'tries'}."
        reply["next"] = again if remaining > 0 else "The gate is shut."
    return gate_model.Answered(
        state=work.state(), valid=False, gate=gate.gate_id, told=reply, traces=tuple(work.traces)
    )


def _again(work: EvaluationRun, gate: Gate, which: gate_model.Open, reason: str) -> int:
    """One try less. How many are left."""
    remaining, for_all = _count(work, gate, which)
    if remaining <= 0:
        tries = work.tried[gate.key] if for_all else gate.max_attempts
        work.shut_gate(gate, which, f"{tries} tries, the last one: {reason}"[:1000], for_all=for_all)
        return 0
    waiting = work.open
    for at, question in enumerate(waiting):
        if question == which:
            waiting[at] = replace(which, attempts=which.attempts + 1, fault=reason)
        elif _shares(gate, question):
            waiting[at] = replace(question, attempts=which.attempts + 1)
    return remaining


def _shares(gate: Gate, which: gate_model.Open) -> bool:
    """A gate that is not passed for one call has as many tries as it says, whichever calls it stops."""
    return bool(which.call) and which.gate == gate.key and gate.trigger.type not in gate_model.FOR_ONE_CALL


def _count(work: EvaluationRun, gate: Gate, which: gate_model.Open) -> tuple[int, bool]:
    """A wrong answer: how many tries are left, and whether other calls have none either. Every call has its own; all of
    them together have an end, so that other arguments do not give fresh ones for ever."""
    if not which.call:
        return gate.max_attempts - which.attempts - 1, False
    attempts = work.tried.get(gate.key, 0) + 1
    work.tried[gate.key] = attempts
    if _shares(gate, which):
        return gate.max_attempts - attempts, attempts >= gate.max_attempts
    together = max(gate_model.MAX_TRIES, gate.max_attempts) - attempts
    return min(gate.max_attempts - which.attempts - 1, together), together <= 0


def _forget_tries(work: EvaluationRun, gate: Gate, which: gate_model.Open) -> None:
    """The right answer came: of this call, or of all where they share it."""
    attempts = work.tried.get(gate.key, 0)
    if not attempts or not which.call:
        return
    shared = _shares(gate, which)
    if not shared and which.attempts < attempts:
        work.tried[gate.key] = attempts - which.attempts
        return
    del work.tried[gate.key]
    if shared:
        work.open = [replace(question, attempts=0) if _shares(gate, question) else question for question in work.open]


def ignored(atlases: CompiledAtlases, state: gate_model.GateState, now: datetime) -> gate_model.Evaluation:
    """A response that answered none of the questions that stop the session: that counts as a wrong answer to each."""
    work = EvaluationRun(atlases, state, now)
    for which in state.asks:
        if (gate := atlases.gates.get(which.gate)) is not None:
            work.blocked(gate, gate_model.UNANSWERED)
            _again(work, gate, which, gate_model.UNANSWERED)
    return gate_model.Evaluation(state=work.state(), traces=tuple(work.traces))


def _traced(answers: Mapping[str, Any]) -> dict[str, Any]:
    """Answers as the trail keeps them: whole, or marked as cut."""
    shortened, cut = shorten(dict(islice(answers.items(), MAX_TRACED_ANSWERS)), MAX_ANSWER, MAX_TRACED)
    more = len(answers) - len(shortened)
    return {"answers": shortened, **({"cut": cut} if cut else {}), **({"more_answers": more} if more else {})}


def shorten(answers: Mapping[str, Any], longest: int, room: int) -> tuple[dict[str, Any], dict[str, int]]:
    """Answers with at most so many characters each and together; and of those that were cut, how many they had."""
    shortened, cut = dict[str, Any](), dict[str, int]()
    for id, value in answers.items():
        name, text, most = str(id)[:200], _as_text(value), min(longest, room)
        if text is None or len(text) <= most:
            shortened[name] = value
        else:
            shortened[name], cut[name] = text[:most], len(text)
        room -= min(len(text or ""), most)
    return shortened, cut
