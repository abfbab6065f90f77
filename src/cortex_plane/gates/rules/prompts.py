"""What the model reads about gates: guidance, questions and changes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any

import orjson

from cortex_plane.agents.model.completions import provider_name
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.model import gates as gate_model
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.fields import adapter
from cortex_plane.sessions.model.events import TraceType

_EXPECTED = {
    atlas_model.ResponseType.TEXT: "a text",
    atlas_model.ResponseType.BOOLEAN: "true or false",
    atlas_model.ResponseType.ACKNOWLEDGMENT: "the word `understood`, if that is so",
    atlas_model.ResponseType.NUMBER: "a number",
    atlas_model.ResponseType.JSON: "JSON: an object or a list",
}
MAX_SCHEMA = 20_000
"""Characters of a JSON Schema that the model is shown; of a larger one it reads only what is wrong with its answer."""

MAX_CARD = 4000
"""Characters of what people are asked by gates about one call. Nothing of it is ever cut: who approves has read all of it."""

MAX_REQUESTABLE = 100
"""Names that the agent may ask for, as the model is shown them."""
MAX_ASKED = 200_000
"""Bytes of the questions that programs are told at once, besides those of the first gate."""


def card_of(name: str, title: str, questions: Iterable[tuple[str, str | None]]) -> str:
    """What a person is asked by one gate: questions, each with its hint."""
    lines = (f"- {hinted(question, hint)}" for question, hint in questions)
    return "\n".join([f"By approving you pass the gate {name} ({title}):", *lines])


def hinted(question: str, hint: str | None) -> str:
    return f"{question} ({hint})" if hint else question


def card(gates: Iterable[atlas_model.Gate]) -> str:
    """Whoever approves confirms all of it."""
    return "\n".join(
        card_of(gate.gate_id, gate.name, ((question.question, question.hint) for question in gate.questions))
        for gate in gates
    )


def name_of(atlases: CompiledAtlases, key: str) -> str:
    """How an agent names a gate: by its plain id, where no other atlas of its session has the same."""
    gate = atlases.gates[key]
    return gate.gate_id if len(atlases.named(gate.gate_id)) == 1 else key


def guides_of(
    atlases: CompiledAtlases, state: gate_model.GateState
) -> list[tuple[atlas_model.Gate, atlas_model.Guidance, gate_model.ActiveGuidance]]:
    """The guidance that is given, the most important first; what is as important, in the order in which it came."""
    guides = [
        (gate, gate.guidance, entry)
        for key, entry in state.guidance.items()
        if (gate := atlases.gates.get(key)) and gate.guidance
    ]
    return sorted(guides, key=lambda each: (-each[1].priority, each[2].at, each[0].key))


def blocks_of(
    atlases: CompiledAtlases, state: gate_model.GateState
) -> list[tuple[str, atlas_model.ContextBlock, gate_model.ActiveGuidance]]:
    blocks = [(key, atlases.contexts[key], entry) for key, entry in state.contexts.items() if key in atlases.contexts]
    return sorted(blocks, key=lambda each: (-each[1].priority, each[2].at, each[0]))


def prompt_parts(atlases: CompiledAtlases, state: gate_model.GateState) -> gate_model.PromptParts:
    high, rest = list[str](), list[str]()
    for _, guidance, _ in guides_of(atlases, state):
        (high if guidance.format is atlas_model.GuidanceFormat.SYSTEM_INSTRUCTION else rest).append(guidance.content)
    contexts = [f"## {each.name}\n{each.content}" for _, each, _ in blocks_of(atlases, state)]
    return gate_model.PromptParts(
        instructions="\n\n".join(high),
        knowledge="\n\n".join(part for part in (*contexts, *rest, _on_demand(atlases, state)) if part),
        questions=questions(atlases, state.asks),
    )


def requestable(atlases: CompiledAtlases, state: gate_model.GateState) -> dict[str, str]:
    """What the agent may ask for, each name with what stands behind it: contexts that it was not told yet, and gates."""
    names = dict[str, str]()
    for gate in atlases.of(atlas_model.TriggerType.EXPLICIT_REQUEST):
        if gate.mode is atlas_model.Mode.OBSERVATIONAL:
            continue
        contexts = [f"{gate.atlas_id}/{id}" for id in gate.contexts]
        if contexts and not gate.decides and gate.guidance is None and all(key in state.contexts for key in contexts):
            continue
        for pattern in gate.trigger.patterns or ("*",):
            names.setdefault(pattern, gate.name)
    return names


def _on_demand(atlases: CompiledAtlases, state: gate_model.GateState) -> str:
    names = requestable(atlases, state)
    if not names:
        return ""
    lines = [f"- {name} ({title})" for name, title in islice(names.items(), MAX_REQUESTABLE)]
    more = [f"- and {len(names) - MAX_REQUESTABLE} more"] if len(names) > MAX_REQUESTABLE else []
    how = f"You may ask for these with `{provider_name(gate_model.REQUEST_CONTEXT)}`, several at once; * stands for anything:"
    return "\n".join([how, *lines, *more])


def questions(atlases: CompiledAtlases, waiting: Iterable[gate_model.Open]) -> str:
    """As the model is asked."""
    parts = [
        _asked(atlases.gates[question.gate], name_of(atlases, question.gate), question)
        for question in waiting
        if question.gate in atlases.gates
    ]
    if not parts:
        return ""
    how = f"Answer with the tool `{provider_name(gate_model.ANSWER)}`; until then nothing else is accepted."
    return "\n\n".join([*parts, how])


def _asked(gate: atlas_model.Gate, name: str, which: gate_model.Open) -> str:
    before = f"`{which.action}` runs (call `{which.call}`)" if which.call else "you go on"
    lines = [f"The gate `{name}` ({gate.name}) asks before {before}:"]
    lines += [_line(question) for question in gate.questions]
    if which.fault:
        lines.append(f"Your last answer was not accepted: {which.fault}")
    return "\n".join(lines)


def _line(question: atlas_model.GateQuestion) -> str:
    answer_format = _EXPECTED.get(question.response_type) or f"one of {', '.join(question.options)}"
    if question.schema is not None:
        text = orjson.dumps(question.schema).decode()
        is_small = len(text) <= MAX_SCHEMA
        answer_format = (
            f"JSON that fits this JSON Schema: {text}" if is_small else "JSON that fits a schema too large to show"
        )
    optional = [] if question.required else ["optional"]
    question_text = hinted(question.question, question.hint)
    return f"- {question.question_id}: {question_text} [{', '.join([answer_format, *_limits(question), *optional])}]"


def _limits(question: atlas_model.GateQuestion) -> Iterator[str]:
    """What a valid answer must fulfil besides its type, as the model reads it."""
    rules = question.validation
    for words, value in (
        ("at least {} characters", rules.min_length),
        ("at most {} characters", rules.max_length),
        ("with a match of the regular expression {}", rules.pattern),
        ("at least {:g}", rules.minimum),
        ("at most {:g}", rules.maximum),
    ):
        if value is not None:
            yield words.format(value)
    for words, texts in (("it must contain", rules.must_contain), ("it must not contain", rules.must_not_contain)):
        if texts:
            yield f"{words} {', '.join(f'`{text}`' for text in texts)}"
    if rules.equals_argument is not None:
        yield f"equal to the argument `{rules.equals_argument}` of the call"
    if rules.custom_validator is not None:
        yield f"checked by {rules.custom_validator}"


def asked_of(gate: atlas_model.Gate, which: gate_model.Open) -> dict[str, Any]:
    """The same for programs. Its guidance is only named: what it says is told with the contexts, once it is given."""
    return {
        "gate": gate.gate_id, "atlas": gate.atlas_id, "name": gate.name, "call": which.call or None,
        "action": which.action or None, "attempts_left": gate.max_attempts - which.attempts,
        "fault": which.fault or None, "guidance": gate.key if gate.guidance else None,
        "questions": questions_of(gate),
    }  # fmt: skip


def validation_of(question: atlas_model.GateQuestion) -> dict[str, Any]:
    """What a valid answer must fulfil, by the keys of the atlas."""
    rules: dict[str, Any] = adapter(atlas_model.AnswerValidation).dump_python(question.validation, mode="json")
    return {name: value for name, value in rules.items() if value not in (None, [])}


def questions_of(gate: atlas_model.Gate) -> list[dict[str, Any]]:
    return [
        {
            "question_id": question.question_id, "question": question.question, "response_type": question.response_type,
            "required": question.required, "hint": question.hint, "options": list(question.options), "schema": question.schema,
            "equals_argument": question.validation.equals_argument,
            "validation": validation_of(question),
        }
        for question in gate.questions
    ]  # fmt: skip


def asked_of_all(atlases: CompiledAtlases, waiting: Iterable[gate_model.Open]) -> list[dict[str, Any]]:
    """The first in full, and the others as far as there is room; the rest is named, and can be read when its turn comes."""
    groups = [asked_of(atlases.gates[entry.gate], entry) for entry in waiting if entry.gate in atlases.gates]
    room = MAX_ASKED
    for number, questions in enumerate(groups):
        room -= len(orjson.dumps(questions["questions"]))
        if room < 0 < number:
            questions["more_questions"] = len(questions["questions"])
            questions["questions"] = []
    return groups


SHOWN = 200
"""Characters of one answer, one reason or one keyword."""
SHOWN_ANSWERS = 10
GATE_RULE = "gate:"
"""How the rule begins by which a gate stopped a call."""


class NewsKind(StrEnum):
    ASKED = "asked"
    ADVISED = "advised"
    NOTED = "noted"
    ANSWERED = "answered"
    REFUSED = "refused"
    PASSED = "passed"
    BLOCKED = "blocked"
    SKIPPED = "skipped"


@dataclass(frozen=True, kw_only=True, slots=True)
class GateNews:
    """One thing that a gate did."""

    kind: NewsKind
    atlas: str
    gate: str
    said: str
    """After its name: `asks before ticket.delete runs`."""

    @property
    def line(self) -> str:
        return f"gate {self.gate} {self.said}"


def news(event: str, data: Mapping[str, Any]) -> GateNews | None:
    """Of an event or a fact of a gate; None for any other."""
    payload = _TOLD.get(event)
    if payload is None:
        return None
    kind, text = payload(data)
    return GateNews(
        kind=kind, atlas=_text(data.get("atlas_id")), gate=_text(gate_model.gate_in(data)) or "?", said=text
    )


def gate_of_rule(rule: str) -> str | None:
    """The key of the gate by which a call was stopped, where it was a gate."""
    return rule.removeprefix(GATE_RULE) if rule.startswith(GATE_RULE) else None


_MODES: Mapping[Any, tuple[NewsKind, str]] = {
    atlas_model.Mode.BLOCKING: (NewsKind.ASKED, "asks"),
    atlas_model.Mode.ADVISORY: (NewsKind.ADVISED, "advises"),
    atlas_model.Mode.OBSERVATIONAL: (NewsKind.NOTED, "looks on"),
}


def _triggered(data: Mapping[str, Any]) -> tuple[NewsKind, str]:
    kind, verb = _MODES.get(_text(data.get("mode")), (NewsKind.NOTED, "fires"))
    fired_by = data.get("trigger_data")
    when = _when(_text(gate_model.type_in(data)), fired_by if isinstance(fired_by, Mapping) else {})
    return kind, f"{verb} {when}".rstrip()


_WHEN: Mapping[Any, str] = {
    atlas_model.TriggerType.SESSION_START: "as the session begins",
    atlas_model.TriggerType.SESSION_END: "as the session ends",
    atlas_model.TriggerType.INTERACTIVE: "before anything goes on",
    atlas_model.TriggerType.ACTION_PRE: "before {action_id} runs",
    atlas_model.TriggerType.CAPABILITY_ACCESS: "before {action_id} runs: its capability is locked",
    atlas_model.TriggerType.RISK_THRESHOLD: "before {action_id} runs, for its risk",
    atlas_model.TriggerType.ACTION_POST: "after {action_id} ended",
    atlas_model.TriggerType.KEYWORD: "because of {words}",
    atlas_model.TriggerType.TIME_INTERVAL: "because {seconds} seconds have passed",
    atlas_model.TriggerType.COUNT_INTERVAL: "because {actions} actions have run",
    atlas_model.TriggerType.EXPLICIT_REQUEST: "because the agent asked for “{requested}”",
    atlas_model.TriggerType.ERROR_OCCURRED: "because something went wrong: {error}",
    atlas_model.TriggerType.CUSTOM: "because {trigger_id} said so",
}


def _when(trigger: str, data: Mapping[str, Any]) -> str:
    if trigger not in _WHEN:
        return f"at {trigger}" if trigger else ""
    texts = defaultdict(str, {name: _text(value) for name, value in data.items()})
    keywords = data.get("matched")
    words = [f"“{_text(word)}”" for word in keywords[:SHOWN_ANSWERS]] if isinstance(keywords, list) else []
    texts["words"] = ", ".join(words) or texts["unread"] or "what was said"
    return _WHEN[trigger].format_map(texts)


def _response(data: Mapping[str, Any]) -> tuple[NewsKind, str]:
    answers_field = data.get("answers")
    answers = list(answers_field.items()) if isinstance(answers_field, Mapping) else []
    parts = [f"{_text(key)} = {_text(value)}" for key, value in answers[:SHOWN_ANSWERS]]
    more = data.get("more_answers")
    if remaining := max(0, len(answers) - SHOWN_ANSWERS) + (more if isinstance(more, int) else 0):
        parts.append(f"and {remaining} more")
    about = f" for {_text(data['action_id'])}" if data.get("action_id") else ""
    message = f"is answered{about}: {', '.join(parts) or 'nothing'}"
    wrong = _faults(data.get("faults"))
    match data.get("validation_result"):
        case "valid":
            return NewsKind.ANSWERED, message
        case "invalid":
            return NewsKind.REFUSED, f"{message}; not accepted{wrong}"
    return NewsKind.ANSWERED, f"{message}; accepted all the same{wrong}"


def _faults(faults: Any) -> str:
    if not isinstance(faults, Mapping) or not faults:
        return ""
    lines = [f"{_text(key)}: {_text(message)}" for key, message in list(faults.items())[:SHOWN_ANSWERS]]
    return f" ({'; '.join(lines)})"


def _passed(data: Mapping[str, Any]) -> tuple[NewsKind, str]:
    parts = (("opens", "unlocked_capabilities"), ("locks", "locked_capabilities"), ("tells", "injected_contexts"))
    more = data.get("more")
    more = more if isinstance(more, Mapping) else {}
    effects = [f"{verb} {_names(data[field], more.get(field))}" for verb, field in parts if data.get(field)]
    return NewsKind.PASSED, "is passed" + (f": {', '.join(effects)}" if effects else "")


def _names(names: Any, more: Any) -> str:
    if not isinstance(names, list):
        return _text(names)
    remaining = max(0, len(names) - SHOWN_ANSWERS) + (more if isinstance(more, int) else 0)
    text = ", ".join(_text(name) for name in names[:SHOWN_ANSWERS])
    return f"{text} and {remaining} more" if remaining else text


def _blocked(data: Mapping[str, Any]) -> tuple[NewsKind, str]:
    what = _text(data.get("blocked_action")) or "the session"
    reason = _text(data.get("reason"))
    if reason == gate_model.UNANSWERED:
        return NewsKind.BLOCKED, f"stops {what} until it is answered"
    return NewsKind.BLOCKED, f"stops {what}" + (f": {reason}" if reason else "")


def _skipped(data: Mapping[str, Any]) -> tuple[NewsKind, str]:
    what = "is left out"
    if data.get("context_id"):
        what = f"does not tell {_text(data['context_id'])}"
    elif data.get("guidance"):
        what = "gives no guidance"
    if data.get("others"):
        what = f"and {_text(data['others'])} others are left out"
    return NewsKind.SKIPPED, f"{what}: the budget {_text(data.get('reason'))} is used up"


_TOLD: Mapping[str, Callable[[Mapping[str, Any]], tuple[NewsKind, str]]] = {
    TraceType.TRIGGERED: _triggered,
    TraceType.RESPONSE: _response,
    TraceType.PASSED: _passed,
    TraceType.BLOCKED: _blocked,
    TraceType.SKIPPED: _skipped,
}


def _text(value: Any) -> str:
    """On one line, and no longer than a reader wants."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
    line = " ".join(text[: SHOWN * 8].split())
    return line if len(line) <= SHOWN and len(text) <= SHOWN * 8 else line[: SHOWN - 1] + "…"
