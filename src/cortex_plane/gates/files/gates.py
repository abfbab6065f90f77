"""Reads the gates of an atlas file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.model.atlases import (
    MAX_ATTEMPTS,
    PRIORITIES,
    AnswerValidation,
    Audience,
    Gate,
    GateQuestion,
    Guidance,
    GuidanceFormat,
    InjectMode,
    MatchMode,
    Mode,
    OnInvalid,
    ResponseType,
    Trigger,
    TriggerType,
)
from cortex_plane.kernel.canonical import canonical

Plain = dict[str, Any]
CONFIRM = "confirm"
_NO_VALIDATION = AnswerValidation()
# Words into values: a call of an enum takes five times as long, which a large atlas feels.
_MODES = {each.value: each for each in Mode}
_TYPES = {each.value: each for each in TriggerType}
_MATCHES = {each.value: each for each in MatchMode}
_AUDIENCES = {each.value: each for each in Audience}
_RESPONSES = {each.value: each for each in ResponseType}
_ON_INVALID = {each.value: each for each in OnInvalid}
_WORDS_OF_TEXT = ("must_contain", "must_not_contain")


def gates_of(atlas: Plain) -> Iterator[Gate]:
    atlas_id: str = atlas["atlas_id"]
    for checkpoint in atlas.get("checkpoints", ()):
        yield _checkpoint(atlas_id, checkpoint)
    for context in atlas.get("context_blocks", ()):
        yield _of_context(atlas_id, context)
    yield from _of_config(atlas_id, atlas.get("checkpoint_config", {}))


# Checkpoints -----------------------------------------------------------------------------------------------------


def _checkpoint(atlas_id: str, given: Plain) -> Gate:
    trigger = _trigger(given["trigger"])
    guidance = given.get("guidance")
    return Gate(
        gate_id=given["checkpoint_id"],
        atlas_id=atlas_id,
        name=given.get("name") or given["checkpoint_id"],
        trigger=trigger,
        mode=_MODES[given["mode"]],
        priority=given.get("priority", PRIORITIES[trigger.type]),
        audience=_AUDIENCES[given.get("audience", "agent")],
        questions=tuple(_question(each) for each in given.get("questions", ())),
        guidance=None if guidance is None else _guidance(guidance),
        contexts=tuple(given.get("inject_contexts", ())),
        unlock_capabilities=tuple(given.get("unlock_capabilities", ())),
        lock_capabilities=tuple(given.get("lock_capabilities", ())),
        allow_actions=tuple(given.get("allow_actions", ())),
        deny_actions=tuple(given.get("deny_actions", ())),
        force_sync_trace=given.get("force_sync_trace", False),
        max_attempts=given.get("max_attempts", MAX_ATTEMPTS),
    )


def _trigger(given: Plain) -> Trigger:
    tier = given.get("min_tier")
    return Trigger(
        type=_TYPES[given["type"]],
        patterns=tuple(given.get("patterns", ())),
        match_mode=_MATCHES[given.get("match_mode", "any")],
        case_sensitive=given.get("case_sensitive", False),
        min_tier=None if tier is None else Risk(tier),
        capability_ids=tuple(given.get("capability_ids", ())),
        seconds=given.get("seconds"),
        actions=given.get("actions"),
        trigger_id=given.get("trigger_id"),
        params=given.get("params", {}),
    )


def _question(given: Plain) -> GateQuestion:
    validation = given.get("validation")
    return GateQuestion(
        question_id=given["question_id"],
        question=given["question"],
        response_type=_RESPONSES[given["response_type"]],
        required=given.get("required", True),
        hint=given.get("hint"),
        options=tuple(given.get("options", ())),
        schema=given.get("schema"),
        validation=_validation(validation) if validation else _NO_VALIDATION,
        on_invalid=_ON_INVALID[given.get("on_invalid", "retry")],
    )


def _validation(given: Plain) -> AnswerValidation:
    words: dict[str, Any] = {key: tuple(given[key]) for key in _WORDS_OF_TEXT if key in given}
    return AnswerValidation(**{**given, **words})


def _guidance(given: Plain) -> Guidance:
    content = given["content"]
    return Guidance(
        content=content if isinstance(content, str) else canonical(content).decode(),
        format=GuidanceFormat(given.get("format", GuidanceFormat.TEXT)),
        priority=given.get("priority", 100),
        append=given.get("append", True),
        expires_after=given.get("expires_after"),
        labels=tuple(given.get("labels", ())),
    )


# The rest --------------------------------------------------------------------------------------------------------


def _tells(atlas_id: str, gate_id: str, name: str, trigger: Trigger, contexts: list[str]) -> Gate:
    """A gate that tells, and lets pass."""
    return Gate(
        gate_id=gate_id,
        atlas_id=atlas_id,
        name=name,
        trigger=trigger,
        mode=Mode.ADVISORY,
        priority=PRIORITIES[trigger.type],
        contexts=tuple(contexts),
    )


def _of_context(atlas_id: str, given: Plain) -> Gate:
    context_id: str = given["context_id"]
    match InjectMode(given.get("inject_mode", InjectMode.ON_DEMAND)):
        case InjectMode.ALWAYS:
            trigger = Trigger(type=TriggerType.SESSION_START)
        case InjectMode.ON_MATCH:
            trigger = _trigger({**given, "type": TriggerType.KEYWORD, "patterns": given["keywords"]})
        case InjectMode.RISK_BASED:
            trigger = Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=Risk(given["min_tier"]))
        case InjectMode.ON_DEMAND:
            trigger = Trigger(type=TriggerType.EXPLICIT_REQUEST, patterns=(context_id,))
    return _tells(atlas_id, f"context:{context_id}", given.get("name", context_id), trigger, [context_id])


def _of_config(atlas_id: str, config: Plain) -> Iterator[Gate]:
    for section, given in config.items():
        if section == "budget" or not given.get("enabled", True):
            continue
        if section == "keyword_match":
            yield from _of_keywords(atlas_id, given)
        elif section == "action_pre":
            for pattern, wanted in given.get("mappings", {}).items():
                yield _of_action(atlas_id, pattern, wanted)
        else:
            yield _of_section(atlas_id, section, given)


def _of_section(atlas_id: str, section: str, given: Plain) -> Gate:
    trigger = _trigger({**given, "type": section})
    gate = _tells(
        atlas_id, f"config:{section}", section.replace("_", " "), trigger, given.get("inject_contexts", [])
    )
    return replace(gate, force_sync_trace=given.get("require_sync_trace", False))


def words_of(key: str, match_mode: str) -> list[str]:
    """`a|b` are two words; in a regular expression the bar means the same by itself."""
    return [key] if match_mode == MatchMode.REGEX else [word.strip() for word in key.split("|")]


def _of_keywords(atlas_id: str, given: Plain) -> Iterator[Gate]:
    mode = given.get("match_mode", MatchMode.ANY)
    for key, contexts in given.get("mappings", {}).items():
        trigger = Trigger(
            type=TriggerType.KEYWORD,
            patterns=tuple(words_of(key, mode)),
            match_mode=MatchMode(mode),
            case_sensitive=given.get("case_sensitive", False),
        )
        yield _tells(atlas_id, f"config:keyword_match:{key}", f"keywords {key}", trigger, contexts)


def _of_action(atlas_id: str, pattern: str, wanted: Plain) -> Gate:
    asks = wanted.get("require_confirmation", False)
    question = GateQuestion(
        question_id=CONFIRM,
        question=f"I want this call of {pattern} to happen, and I understand what it does.",
        response_type=ResponseType.ACKNOWLEDGMENT,
    )
    return Gate(
        gate_id=f"config:action_pre:{pattern}",
        atlas_id=atlas_id,
        name=f"before {pattern}",
        trigger=Trigger(type=TriggerType.ACTION_PRE, patterns=dotted(pattern)),
        mode=Mode.BLOCKING if asks else Mode.ADVISORY,
        priority=PRIORITIES[TriggerType.ACTION_PRE],
        questions=(question,) if asks else (),
        contexts=tuple(wanted.get("inject_contexts", ())),
        require_policy_check=wanted.get("require_policy_check", False),
    )


def dotted(pattern: str) -> tuple[str, ...]:
    """`delete_*` means `delete.*` as well: an underscore beside a star may be a dot."""
    other = pattern.replace("_*", ".*").replace("*_", "*.")
    return (pattern,) if other == pattern else (pattern, other)
