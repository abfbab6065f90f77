"""Reads an atlas file: YAML or JSON into an atlas, with errors and warnings by line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import orjson

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.files.checks import EFFECTS, Checks, Path, Plain, dotted, entries, line_at, words_of
from cortex_plane.gates.files.keys import ATLAS
from cortex_plane.gates.model.atlases import (
    MAX_ATLAS_BYTES,
    MAX_ATTEMPTS,
    PRIORITIES,
    AccessType,
    Action,
    AnswerValidation,
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    Audience,
    Capability,
    ContextBlock,
    Gate,
    GateBudget,
    GateQuestion,
    Guidance,
    GuidanceFormat,
    InjectMode,
    MatchMode,
    Mode,
    OnInvalid,
    ResponseType,
    Steward,
    Trigger,
    TriggerType,
)
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.documents import Bounds, Faults, MappingNode, Node, looks_like_json, read_document
from cortex_plane.kernel.globs import STAR, GlobIndex
from cortex_plane.kernel.shapes import Reading
from cortex_plane.policies.model.policies import Template

HINT = "Correct the file and try again; nothing was changed. Its format is in docs/guides/atlases.md."
BOUNDS = Bounds(MAX_ATLAS_BYTES, depth=40)


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """An atlas file that holds."""

    atlas: Atlas
    warnings: list[str]
    """What is probably not meant, each with its line."""
    manifest: bytes
    """JSON in its canonical form; its SHA-256 is the atlas's digest."""


def read(text: str, *, name: str = "atlas.yaml") -> Read:
    """Raises ``InvalidInput`` that names every line at fault.

    A file whose name ends in .json, or that begins with a brace, is JSON; every other is YAML.
    """
    faults = Faults(code="invalid_atlas", hint=HINT, name=name)
    is_json = name.endswith(".json") or looks_like_json(text)
    root = read_document(text, faults, BOUNDS, is_json=is_json)
    node, plain = _plain(root, faults)
    manifest = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    return Read(atlas=compiled(manifest), warnings=warnings_of(plain, node, faults), manifest=manifest)


def _plain(root: Node | None, faults: Faults) -> tuple[Node, Plain]:
    if not isinstance(root, MappingNode) or not root.items:
        line = root.line if root is not None else 1
        faults.refuse(line, f"an atlas is a mapping with {', '.join(ATLAS.fields)}.")
    plain = ATLAS.read(root, "atlas", Reading(faults))
    faults.raise_any()
    assert plain is not None  # noqa: S101 — a mapping is read, or a fault was raised
    Checks(plain, root, faults).run()
    faults.raise_any()
    return root, plain


def compiled(manifest: bytes) -> Atlas:
    """The atlas of a manifest that `read` made. Nothing is checked again: whoever keeps it compares its digest."""
    return _atlas(orjson.loads(manifest), manifest)


def _atlas(manifest_data: Plain, manifest: bytes) -> Atlas:
    locked_ids = unlockable(manifest_data)
    return Atlas(
        atlas_id=manifest_data["atlas_id"],
        version=manifest_data["version"],
        name=manifest_data["name"],
        digest=hashlib.sha256(manifest).hexdigest(),
        steward=_steward(manifest_data["steward"]),
        description=manifest_data.get("description", ""),
        gates=tuple(gates_of(manifest_data)),
        capabilities=tuple(_capability(capability, locked_ids) for capability in manifest_data.get("capabilities", ())),
        contexts=tuple(_context(context) for context in manifest_data.get("context_blocks", ())),
        policies=tuple(_policy(policy) for policy in manifest_data.get("policies", ())),
        actions=tuple(_action(action) for action in manifest_data.get("actions", ())),
        budget=GateBudget(**manifest_data.get("checkpoint_config", {}).get("budget", {})),
    )


def _steward(steward: Plain) -> Steward:
    access, notifications = steward.get("access", {}), steward.get("notifications", {})
    return Steward(
        id=steward["id"],
        name=steward["name"],
        contact=steward.get("contact"),
        access=AccessType(access.get("type", AccessType.PUBLIC)),
        api_keys=tuple(access.get("api_keys", ())),
        requests_per_minute=access.get("rate_limit", {}).get("requests_per_minute"),
        webhook=notifications.get("channels", {}).get("webhook"),
        notify_on=tuple(dict.fromkeys(notifications.get("triggers", ()))),
    )


def _capability(capability: Plain, locked_ids: set[str]) -> Capability:
    id: str = capability["capability_id"]
    return Capability(
        capability_id=id,
        name=capability.get("name", id),
        actions=tuple(dict.fromkeys(capability["actions"])),
        locked=id in locked_ids,
    )


def _context(context: Plain) -> ContextBlock:
    return ContextBlock(
        context_id=context["context_id"],
        name=context.get("name") or context["context_id"],
        content=context["content"],
        inject_mode=InjectMode(context.get("inject_mode", InjectMode.ON_DEMAND)),
        priority=context.get("priority", 100),
    )


def _policy(policy: Plain) -> AtlasPolicy:
    template = policy.get("template")
    return AtlasPolicy(
        policy_id=policy["policy_id"],
        type=AtlasPolicyType(policy["type"]),
        actions=tuple(dict.fromkeys(policy["actions"])),
        reason=policy.get("reason", ""),
        max_calls=policy.get("max_calls"),
        window_seconds=policy.get("window_seconds"),
        template=None if template is None else Template(template),
    )


def _action(action: Plain) -> Action:
    return Action(
        action_id=action["action_id"],
        name=action.get("name") or action["action_id"],
        description=action.get("description", ""),
        risk_tier=Risk(action.get("risk_tier", Risk.LOW)),
        parameters_schema=action.get("parameters_schema"),
    )


# Gates ----------------------------------------------------------------------------------------------------------

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


def _checkpoint(atlas_id: str, checkpoint: Plain) -> Gate:
    trigger = _trigger(checkpoint["trigger"])
    guidance = checkpoint.get("guidance")
    return Gate(
        gate_id=checkpoint["checkpoint_id"],
        atlas_id=atlas_id,
        name=checkpoint.get("name") or checkpoint["checkpoint_id"],
        trigger=trigger,
        mode=_MODES[checkpoint["mode"]],
        priority=checkpoint.get("priority", PRIORITIES[trigger.type]),
        audience=_AUDIENCES[checkpoint.get("audience", "agent")],
        questions=tuple(_question(question) for question in checkpoint.get("questions", ())),
        guidance=None if guidance is None else _guidance(guidance),
        contexts=tuple(checkpoint.get("inject_contexts", ())),
        unlock_capabilities=tuple(checkpoint.get("unlock_capabilities", ())),
        lock_capabilities=tuple(checkpoint.get("lock_capabilities", ())),
        allow_actions=tuple(checkpoint.get("allow_actions", ())),
        deny_actions=tuple(checkpoint.get("deny_actions", ())),
        force_sync_trace=checkpoint.get("force_sync_trace", False),
        max_attempts=checkpoint.get("max_attempts", MAX_ATTEMPTS),
    )


def _trigger(trigger: Plain) -> Trigger:
    tier = trigger.get("min_tier")
    return Trigger(
        type=_TYPES[trigger["type"]],
        patterns=tuple(trigger.get("patterns", ())),
        match_mode=_MATCHES[trigger.get("match_mode", "any")],
        case_sensitive=trigger.get("case_sensitive", False),
        min_tier=None if tier is None else Risk(tier),
        capability_ids=tuple(trigger.get("capability_ids", ())),
        seconds=trigger.get("seconds"),
        actions=trigger.get("actions"),
        trigger_id=trigger.get("trigger_id"),
        params=trigger.get("params", {}),
    )


def _question(question: Plain) -> GateQuestion:
    validation = question.get("validation")
    return GateQuestion(
        question_id=question["question_id"],
        question=question["question"],
        response_type=_RESPONSES[question["response_type"]],
        required=question.get("required", True),
        hint=question.get("hint"),
        options=tuple(question.get("options", ())),
        schema=question.get("schema"),
        validation=_validation(validation) if validation else _NO_VALIDATION,
        on_invalid=_ON_INVALID[question.get("on_invalid", "retry")],
    )


def _validation(rules: Plain) -> AnswerValidation:
    words: dict[str, Any] = {key: tuple(rules[key]) for key in _WORDS_OF_TEXT if key in rules}
    return AnswerValidation(**{**rules, **words})


def _guidance(guidance: Plain) -> Guidance:
    content = guidance["content"]
    return Guidance(
        content=content if isinstance(content, str) else canonical(content).decode(),
        format=GuidanceFormat(guidance.get("format", GuidanceFormat.TEXT)),
        priority=guidance.get("priority", 100),
        append=guidance.get("append", True),
        expires_after=guidance.get("expires_after"),
        labels=tuple(guidance.get("labels", ())),
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


def _of_context(atlas_id: str, context: Plain) -> Gate:
    context_id: str = context["context_id"]
    match InjectMode(context.get("inject_mode", InjectMode.ON_DEMAND)):
        case InjectMode.ALWAYS:
            trigger = Trigger(type=TriggerType.SESSION_START)
        case InjectMode.ON_MATCH:
            trigger = _trigger({**context, "type": TriggerType.KEYWORD, "patterns": context["keywords"]})
        case InjectMode.RISK_BASED:
            trigger = Trigger(type=TriggerType.RISK_THRESHOLD, min_tier=Risk(context["min_tier"]))
        case InjectMode.ON_DEMAND:
            trigger = Trigger(type=TriggerType.EXPLICIT_REQUEST, patterns=(context_id,))
    return _tells(atlas_id, f"context:{context_id}", context.get("name", context_id), trigger, [context_id])


def _of_config(atlas_id: str, config: Plain) -> Iterator[Gate]:
    for section, settings in config.items():
        if section == "budget" or not settings.get("enabled", True):
            continue
        if section == "keyword_match":
            yield from _of_keywords(atlas_id, settings)
        elif section == "action_pre":
            for pattern, mapping in settings.get("mappings", {}).items():
                yield _of_action(atlas_id, pattern, mapping)
        else:
            yield _of_section(atlas_id, section, settings)


def _of_section(atlas_id: str, section: str, settings: Plain) -> Gate:
    trigger = _trigger({**settings, "type": section})
    gate = _tells(
        atlas_id, f"config:{section}", section.replace("_", " "), trigger, settings.get("inject_contexts", [])
    )
    return replace(gate, force_sync_trace=settings.get("require_sync_trace", False))


def _of_keywords(atlas_id: str, settings: Plain) -> Iterator[Gate]:
    mode = settings.get("match_mode", MatchMode.ANY)
    for key, contexts in settings.get("mappings", {}).items():
        trigger = Trigger(
            type=TriggerType.KEYWORD,
            patterns=tuple(words_of(key, mode)),
            match_mode=MatchMode(mode),
            case_sensitive=settings.get("case_sensitive", False),
        )
        yield _tells(atlas_id, f"config:keyword_match:{key}", f"keywords {key}", trigger, contexts)


def _of_action(atlas_id: str, pattern: str, mapping: Plain) -> Gate:
    asks = mapping.get("require_confirmation", False)
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
        contexts=tuple(mapping.get("inject_contexts", ())),
        require_policy_check=mapping.get("require_policy_check", False),
    )


# Warnings -------------------------------------------------------------------------------------------------------

MAX_WARNINGS = 100
"""That are told; what follows is counted."""
_SECRETS = re.compile(
    r"\b(pass(word|phrase|code)|api[ _-]?key|secret|credentials?|private key|access token|pin code)\b", re.IGNORECASE
)
_MAPPED = {"keyword_match": "it names no contexts", "action_pre": "it asks for nothing"}
_ALLOWING = (AtlasPolicyType.ALLOW, AtlasPolicyType.REQUIRES_APPROVAL)


def warnings_of(atlas: Plain, root: Node, faults: Faults) -> list[str]:
    """Each with its line, in the order of the file."""
    warnings = [*_actions(atlas), *_capabilities(atlas), *_checkpoints(atlas), *_config(atlas), *_notifications(atlas)]
    by_line = sorted({(line_at(root, path), message) for path, message in warnings})
    messages = [f"{faults.at(line)}: {message}" for line, message in by_line[:MAX_WARNINGS]]
    if len(by_line) > MAX_WARNINGS:
        messages.append(f"and {len(by_line) - MAX_WARNINGS} more warnings")
    return messages


Warnings = Iterator[tuple[Path, str]]


def _actions(atlas: Plain) -> Warnings:
    action_ids = {action["action_id"] for action in atlas.get("actions", ())}
    seen: set[str] = set()
    for path, action in _named(atlas):
        if STAR not in action and action not in action_ids and action not in seen:
            seen.add(action)
            yield (path, f"the action `{action}` is not declared in `actions`: only its tool says how risky it is.")
    allowing = GlobIndex[bool]((each, True) for each in _allowing(atlas))
    denying = GlobIndex[bool](
        (pattern, True) for _, policy in entries(atlas, "policies") if policy["type"] == AtlasPolicyType.DENY
        for pattern in policy["actions"]
    )  # fmt: skip
    for path, declaration in entries(atlas, "actions"):
        id = declaration["action_id"]
        if not allowing.find(id) and not denying.find(id):
            yield (
                path,
                f"nothing can ever allow the action `{id}`: put it into a capability, or allow it by a policy.",
            )


def _named(atlas: Plain) -> Iterator[tuple[Path, str]]:
    for section in ("capabilities", "policies"):
        for path, entry in entries(atlas, section):
            for number, action in enumerate(entry["actions"]):
                yield (*path, "actions", number), action
    for path, checkpoint in entries(atlas, "checkpoints"):
        if checkpoint["trigger"]["type"] in (TriggerType.ACTION_PRE, TriggerType.ACTION_POST):
            for number, action in enumerate(checkpoint["trigger"]["patterns"]):
                yield (*path, "trigger", "patterns", number), action
        for key in ("allow_actions", "deny_actions"):
            for number, action in enumerate(checkpoint.get(key, ())):
                yield (*path, key, number), action


def _allowing(atlas: Plain) -> Iterator[str]:
    for _, capability in entries(atlas, "capabilities"):
        yield from capability["actions"]
    for _, policy in entries(atlas, "policies"):
        if policy["type"] in _ALLOWING:
            yield from policy["actions"]
    for _, checkpoint in entries(atlas, "checkpoints"):
        yield from checkpoint.get("allow_actions", ())


def _capabilities(atlas: Plain) -> Warnings:
    lockers: dict[str, str] = {}
    for _, checkpoint in entries(atlas, "checkpoints"):
        for capability in checkpoint.get("lock_capabilities", ()):
            lockers.setdefault(capability, checkpoint["checkpoint_id"])
    unlockable_ids = unlockable(atlas)
    for path, capability in entries(atlas, "capabilities"):
        id = capability["capability_id"]
        if id in lockers and id not in unlockable_ids:
            yield path, f"`{lockers[id]}` locks the capability `{id}`, and nothing unlocks it again."


def unlockable(atlas: Plain) -> set[str]:
    """Capabilities that some gate opens, or stands before: they begin locked."""
    ids: set[str] = set()
    for checkpoint in atlas.get("checkpoints", ()):
        ids.update(checkpoint.get("unlock_capabilities", ()))
        # Whoever only watches stands before nothing.
        if checkpoint["mode"] != Mode.OBSERVATIONAL:
            ids.update(checkpoint["trigger"].get("capability_ids", ()))
    return ids


def _checkpoints(atlas: Plain) -> Warnings:
    for path, checkpoint in entries(atlas, "checkpoints"):
        if checkpoint["mode"] != Mode.BLOCKING and "max_attempts" in checkpoint:
            yield (
                (*path, "max_attempts"),
                f"nobody answers a checkpoint that is {checkpoint['mode']}: `max_attempts` does nothing.",
            )
        if checkpoint["trigger"]["type"] == TriggerType.SESSION_END:
            for key in EFFECTS:
                if checkpoint.get(key):
                    yield (*path, key), f"`{key}` comes too late: the session ends."
        for number, question in enumerate(checkpoint.get("questions", ())):
            if _SECRETS.search(f"{question['question']} {question.get('hint', '')}"):
                yield (
                    (*path, "questions", number, "question"),
                    "do not ask for credentials: answers are kept on the trail.",
                )


def _config(atlas: Plain) -> Warnings:
    """What the short form names without saying what for."""
    for section, settings in atlas.get("checkpoint_config", {}).items():
        path: Path = ("checkpoint_config", section)
        if section == "budget" or not settings.get("enabled", True):
            continue
        if section in _MAPPED:
            for key, mapping in settings.get("mappings", {}).items():
                if not (any(mapping.values()) if isinstance(mapping, dict) else mapping):
                    yield ((*path, "mappings", key), f"{_MAPPED[section]}: the mapping does nothing but record.")
        elif not settings.get("inject_contexts") and not settings.get("require_sync_trace"):
            yield path, f"`{section}` has no `inject_contexts`: it does nothing but record."


def _notifications(atlas: Plain) -> Warnings:
    notifications: dict[str, Any] = atlas["steward"].get("notifications", {})
    webhook, triggers = notifications.get("channels", {}).get("webhook"), notifications.get("triggers")
    path: Path = ("steward", "notifications")
    if triggers and webhook is None:
        yield (*path, "triggers"), "there is no `webhook` in `channels`: nobody is told."
    if webhook is not None and not triggers:
        yield (*path, "channels"), "there are no `triggers`: the webhook is never called."
