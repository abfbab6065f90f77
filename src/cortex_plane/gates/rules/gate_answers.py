"""Answering a gate: which one is meant, whether the answers hold, and what follows."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from cortex_plane.gates.model.atlases import Gate, OnInvalid
from cortex_plane.gates.model.gates import (
    FOR_ONE_CALL,
    MAX_PASSES,
    MAX_TRIES,
    Answered,
    Evaluation,
    GateState,
    Open,
    Pass,
)
from cortex_plane.gates.rules.answers import Fault, check
from cortex_plane.gates.rules.gate_effects import UNANSWERED, EvaluationRun
from cortex_plane.gates.rules.gate_index import CompiledAtlases
from cortex_plane.gates.rules.gate_prompts import name_of
from cortex_plane.sessions.model.events import TraceType

SHOWN_ANSWER = 2000
"""Characters of an answer that the trail keeps."""
_GOES_ON = (OnInvalid.WARN_AND_CONTINUE, OnInvalid.LOG_AND_CONTINUE)


@dataclass(frozen=True, kw_only=True, slots=True)
class AnswerTarget:
    """The open question that an answer is for; or why there is none."""

    gate: Gate | None = None
    which: Open | None = None
    error: str = ""


def meant(atlases: CompiledAtlases, state: GateState, gate_id: str, call: str | None) -> AnswerTarget:
    named = {gate.key for gate in atlases.named(gate_id)}
    found = [each for each in state.open if each.gate in named and (call is None or each.call == call)]
    if len(found) == 1:
        return AnswerTarget(gate=atlases.gates[found[0].gate], which=found[0])
    if found:
        return AnswerTarget(error=_which(gate_id, found))
    waiting = ", ".join(
        f"`{name_of(atlases, each.gate)}`" for each in state.open if each.gate in atlases.gates
    )
    return AnswerTarget(
        error=f"`{gate_id[:100]}` does not wait for an answer. Gates that do: {waiting or 'none'}."
    )


def _which(gate_id: str, found: list[Open]) -> str:
    """What to say more exactly, where several are meant."""
    if len({each.gate for each in found}) > 1:
        names = ", ".join(f"`{key}`" for key in sorted({each.gate for each in found}))
        return f"`{gate_id[:100]}` is a gate of several atlases: name one in full: {names}."
    which = ", ".join(f"{each.call} ({each.action})" for each in found)
    return f"`{gate_id[:100]}` stops several calls: name one with `call`: {which}."


def answer(
    atlases: CompiledAtlases,
    state: GateState,
    found: AnswerTarget,
    answers: Mapping[str, Any],
    custom: Mapping[str, str | None],
    now: datetime,
) -> Answered:
    """``custom``: what validators said of the answers that `answers.custom_checks` names."""
    if found.gate is None or found.which is None:
        return Answered(state=state, valid=False, gate=None, told={"passed": False, "error": found.error})
    gate, which = found.gate, found.which
    work = EvaluationRun(atlases, state, now)
    wrong = check(gate, answers, custom)
    stops = [fault for fault in wrong if fault.on_invalid not in _GOES_ON]
    result = "valid" if not wrong else "invalid" if stops else "accepted_with_faults"
    work.trace(
        TraceType.RESPONSE, gate, answers=_shown(answers), validation_result=result,
        **({"faults": {each.question_id: each.said for each in wrong}} if wrong else {}),
        **({"action_id": which.action} if which.action else {}),
    )  # fmt: skip
    if stops:
        return _refused(work, gate, which, stops)
    work.change("open").remove(which)
    _forget_tries(work, gate, which)
    work.pass_gate(gate, guided=True)
    if which.call and gate.trigger.type in FOR_ONE_CALL:
        new = Pass(gate=gate.key, action=which.action, input_hash=which.input_hash)
        work.keep("passes", [*work.passes, new][-MAX_PASSES:])
    told: dict[str, Any] = {"passed": True, "gate": gate.gate_id}
    warned = [each.said for each in wrong if each.on_invalid is OnInvalid.WARN_AND_CONTINUE]
    if warned:
        told["warning"] = warned
    told["next"] = f"Now call `{which.action}` again with the same arguments." if which.call else "Go on."
    return Answered(state=work.state(), valid=True, gate=gate.gate_id, told=told, traces=tuple(work.traces))


def _refused(work: EvaluationRun, gate: Gate, which: Open, stops: list[Fault]) -> Answered:
    faults = {each.question_id: each.said for each in stops}
    reason = "; ".join(f"{id}: {said}" for id, said in faults.items())[:1000]
    told: dict[str, Any] = {"passed": False, "gate": gate.gate_id, "faults": faults}
    if any(each.on_invalid is OnInvalid.BLOCK for each in stops):
        _, for_all = _count(work, gate, which)
        work.shut_gate(gate, which, reason, for_all=for_all)
        told["next"] = "The gate is shut. Do not try again."
    else:
        left = _again(work, gate, which, reason)
        told["next"] = (
            f"Answer again; {left} more {'try' if left == 1 else 'tries'}."
            if left > 0
            else "The gate is shut."
        )
    return Answered(state=work.state(), valid=False, gate=gate.gate_id, told=told, traces=tuple(work.traces))


def _again(work: EvaluationRun, gate: Gate, which: Open, reason: str) -> int:
    """One try less. How many are left."""
    left, for_all = _count(work, gate, which)
    if left <= 0:
        tries = work.tried[gate.key] if for_all else gate.max_attempts
        work.shut_gate(gate, which, f"{tries} tries, the last one: {reason}"[:1000], for_all=for_all)
        return 0
    waiting = work.change("open")
    for at, each in enumerate(waiting):
        if each == which:
            waiting[at] = replace(which, attempts=which.attempts + 1, fault=reason)
        elif _shares(gate, each):
            waiting[at] = replace(each, attempts=which.attempts + 1)
    return left


def _shares(gate: Gate, which: Open) -> bool:
    """A gate that is not passed for one call has as many tries as it says, whichever calls it stops."""
    return bool(which.call) and which.gate == gate.key and gate.trigger.type not in FOR_ONE_CALL


def _count(work: EvaluationRun, gate: Gate, which: Open) -> tuple[int, bool]:
    """A wrong answer: how many tries are left, and whether other calls have none either.

    Every call has its own; all of them together have an end, so that other arguments do not give fresh ones for ever.
    """
    if not which.call:
        return gate.max_attempts - which.attempts - 1, False
    tried = work.tried.get(gate.key, 0) + 1
    work.change("tried")[gate.key] = tried
    if _shares(gate, which):
        return gate.max_attempts - tried, tried >= gate.max_attempts
    together = max(MAX_TRIES, gate.max_attempts) - tried
    return min(gate.max_attempts - which.attempts - 1, together), together <= 0


def _forget_tries(work: EvaluationRun, gate: Gate, which: Open) -> None:
    """The right answer came: of this call, or of all where they share it."""
    tried = work.tried.get(gate.key, 0)
    if not tried or not which.call:
        return
    shared = _shares(gate, which)
    if not shared and which.attempts < tried:
        work.change("tried")[gate.key] = tried - which.attempts
        return
    del work.change("tried")[gate.key]
    if shared:
        work.keep("open", [replace(each, attempts=0) if _shares(gate, each) else each for each in work.open])


def ignored(atlases: CompiledAtlases, state: GateState, now: datetime) -> Evaluation:
    """A response that answered none of the questions that stop the session: that counts as a wrong answer to each."""
    work = EvaluationRun(atlases, state, now)
    for which in state.asks:
        gate = atlases.gates.get(which.gate)
        if gate is not None:
            work.blocked(gate, UNANSWERED)
            _again(work, gate, which, UNANSWERED)
    return Evaluation(state=work.state(), traces=tuple(work.traces))


def _shown(answers: Mapping[str, Any]) -> dict[str, Any]:
    return {str(key)[:200]: _cut(value) for key, value in list(answers.items())[:100]}


def _cut(value: Any) -> Any:
    if isinstance(value, str):
        return value[:SHOWN_ANSWER]
    if isinstance(value, dict | list):
        text = json.dumps(value, ensure_ascii=False)
        return value if len(text) <= SHOWN_ANSWER else text[:SHOWN_ANSWER]
    return value
