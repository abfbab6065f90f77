"""Reads an atlas file: YAML or JSON into an atlas, with errors and warnings by line; and compares two atlases."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from cortex_plane.gates.files.checks import (
    EFFECTS,
    Checks,
    Path,
    Plain,
    dotted,
    entries,
    line_at,
    named_actions,
    words_of,
)
from cortex_plane.gates.files.keys import ATLAS
from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.rules.reachability import unreachable_actions
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.documents import (
    Bounds,
    Faults,
    ListNode,
    MappingNode,
    Node,
    ScalarNode,
    looks_like_json,
    read_document,
)
from cortex_plane.kernel.fields import adapter, parse
from cortex_plane.kernel.globs import STAR, GlobIndex
from cortex_plane.kernel.shapes import Reading
from cortex_plane.policies.model.versions import FieldChange

HINT = "Correct the file and try again; nothing was changed. Its format is in docs/guides/atlases.md."
BOUNDS = Bounds(atlas_model.MAX_ATLAS_BYTES, depth=40)


@dataclass(frozen=True, kw_only=True, slots=True)
class Read:
    """An atlas file that holds."""

    atlas: atlas_model.Atlas
    warnings: list[str]
    """What is probably not meant, each with its line."""
    manifest: bytes
    """JSON in its canonical form; its SHA-256 is the atlas's digest."""


def read(text: str, *, name: str = "atlas.yaml") -> Read:
    """Raises ``InvalidInput`` that names every line at fault. A file whose name ends in .json, or that begins with a
    brace, is JSON; every other is YAML."""
    faults = Faults(code="invalid_atlas", hint=HINT, name=name)
    is_json = name.endswith(".json") or looks_like_json(text)
    root = read_document(
        text, faults, BOUNDS, f"an atlas is a mapping with {', '.join(ATLAS.fields)}.", is_json=is_json
    )
    plain = ATLAS.read(root, "atlas", Reading(faults, misplaced=policy_file_lines)) or {}
    faults.raise_any()
    Checks(plain, root, faults).run()
    faults.raise_any()
    manifest = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    atlas = compiled(manifest)
    return Read(atlas=atlas, warnings=warnings_of(plain, atlas, root, faults), manifest=manifest)


_OF_POLICY_FILES = frozenset(
    [
        "when",
        "quorum",
        "approvers",
        "clearance",
        "timeout",
        "remind_before",
        "escalate_before",
        "escalate_to",
        "on_deny",
        "self_approval",
        "standing",
        "final",
        "target",
        "effect",
    ]
)
"""Keys of policy files, which hold for the org and not for an atlas."""
_EFFECTS = ("allow", "deny", "requires_approval")
MAX_SHOWN_TARGETS = 3
MAX_SHOWN_VALUE = 200


def policy_file_lines(key: str, node: MappingNode) -> str | None:
    """Where a key of policy files belongs that stands in an atlas, with the lines to write there."""
    keys = [name for name in node.items if name in _OF_POLICY_FILES]
    if key not in keys:
        return None
    where = "it belongs in a policy file (`cortex policy apply`, docs/guides/policies.md)"
    if key != keys[0]:
        return f"{where}, as `{keys[0]}` does."
    name = next((value for id in ("policy_id", "checkpoint_id", "action_id") if (value := node.items.get(id))), None)
    kind, actions = node.items.get("type"), node.items.get("actions")
    effect = kind.text if isinstance(kind, ScalarNode) and kind.text in _EFFECTS else "requires_approval"
    targets = [_flow(each) for each in actions.items] if isinstance(actions, ListNode) else ["the.tool"]
    own = {"target": "", "effect": effect, **{each: _flow(node.items[each]) for each in keys}}
    lines = ["policies:"]
    for number, target in enumerate(targets[:MAX_SHOWN_TARGETS]):
        suffix = f"-{number + 1}" if number else ""
        lines.append(f"  - name: {(_flow(name) if name is not None else 'a-name') + suffix}")
        lines += [f"    {each}: {value or target}" for each, value in own.items()]
    return "\n  ".join([f"{where}:", *lines])


def _flow(node: Node) -> str:
    """A value as one line of YAML."""
    match node:
        case ScalarNode():
            text = node.text if node.plain else orjson.dumps(node.text).decode()
        case ListNode():
            text = f"[{', '.join(map(_flow, node.items))}]"
        case MappingNode():
            text = f"{{{', '.join(f'{key}: {_flow(value)}' for key, value in node.items.items())}}}"
    return text if len(text) <= MAX_SHOWN_VALUE else f"{text[:MAX_SHOWN_VALUE]}…"


def compiled(manifest: bytes) -> atlas_model.Atlas:
    """The atlas of a manifest that `read` made. Nothing is checked again: the caller compares the digest."""
    plain: Plain = orjson.loads(manifest)
    locked_ids = unlockable(plain)
    return parse(
        atlas_model.Atlas,
        {
            **plain,
            "digest": hashlib.sha256(manifest).hexdigest(),
            "steward": _steward(plain["steward"]),
            "gates": list(_gates(plain)),
            "capabilities": [
                _with_actions(entry, name=entry["capability_id"], locked=entry["capability_id"] in locked_ids)
                for entry in plain.get("capabilities", ())
            ],
            "contexts": [{"name": entry["context_id"], **entry} for entry in plain.get("context_blocks", ())],
            "policies": [_with_actions(entry) for entry in plain.get("policies", ())],
            "actions": [{"name": entry["action_id"], **entry} for entry in plain.get("actions", ())],
            "budget": plain.get("checkpoint_config", {}).get("budget", {}),
        },
    )


def _steward(steward: Plain) -> Plain:
    access, notifications = steward.get("access", {}), steward.get("notifications", {})
    return {
        **steward,
        "access": access.get("type", atlas_model.AccessType.PUBLIC),
        "api_keys": access.get("api_keys", ()),
        "requests_per_minute": access.get("rate_limit", {}).get("requests_per_minute"),
        "webhook": notifications.get("channels", {}).get("webhook"),
        "notify_on": list(dict.fromkeys(notifications.get("triggers", ()))),
    }


def _with_actions(entry: Plain, **defaults: Any) -> Plain:
    return {**defaults, **entry, "actions": list(dict.fromkeys(entry["actions"]))}


def _gates(atlas: Plain) -> Iterator[Plain]:
    """The gates of checkpoints, context blocks and the short form, with the keys of `Gate`."""
    for checkpoint in atlas.get("checkpoints", ()):
        yield _gate(atlas, checkpoint["checkpoint_id"], **{"name": checkpoint["checkpoint_id"], **checkpoint})
    for context in atlas.get("context_blocks", ()):
        id, trigger = context["context_id"], _context_trigger(context)
        yield _gate(atlas, f"context:{id}", name=context.get("name", id), trigger=trigger, inject_contexts=[id])
    for section, settings in atlas.get("checkpoint_config", {}).items():
        if section != "budget" and settings.get("enabled", True):
            yield from _config_gates(atlas, section, settings)


def _gate(atlas: Plain, id: str, *, trigger: Plain, guidance: Plain | None = None, **fields: Any) -> Plain:
    if guidance is not None and not isinstance(guidance["content"], str):
        guidance = {**guidance, "content": canonical(guidance["content"]).decode()}
    return {
        "mode": atlas_model.Mode.ADVISORY,
        "priority": atlas_model.PRIORITIES[trigger["type"]],
        **fields,
        "gate_id": id,
        "atlas_id": atlas["atlas_id"],
        "trigger": trigger,
        "guidance": guidance,
        "contexts": fields.get("inject_contexts", ()),
    }


def _context_trigger(context: Plain) -> Plain:
    match context.get("inject_mode", atlas_model.InjectMode.ON_DEMAND):
        case atlas_model.InjectMode.ALWAYS:
            return {"type": atlas_model.TriggerType.SESSION_START}
        case atlas_model.InjectMode.ON_MATCH:
            return {**context, "type": atlas_model.TriggerType.KEYWORD, "patterns": context["keywords"]}
        case atlas_model.InjectMode.RISK_BASED:
            return {"type": atlas_model.TriggerType.RISK_THRESHOLD, "min_tier": context["min_tier"]}
    return {"type": atlas_model.TriggerType.EXPLICIT_REQUEST, "patterns": [context["context_id"]]}


def _config_gates(atlas: Plain, section: str, settings: Plain) -> Iterator[Plain]:
    mappings = settings.get("mappings", {}).items()
    if section == "keyword_match":
        for key, contexts in mappings:
            words = words_of(key, settings.get("match_mode", atlas_model.MatchMode.ANY))
            trigger = {**settings, "type": atlas_model.TriggerType.KEYWORD, "patterns": words}
            id = f"config:keyword_match:{key}"
            yield _gate(atlas, id, name=f"keywords {key}", trigger=trigger, inject_contexts=contexts)
    elif section == "action_pre":
        for pattern, mapping in mappings:
            yield _gate(
                atlas,
                f"config:action_pre:{pattern}",
                **mapping,
                name=f"before {pattern}",
                trigger={"type": atlas_model.TriggerType.ACTION_PRE, "patterns": dotted(pattern)},
                **(_confirmation(pattern) if mapping.get("require_confirmation") else {}),
            )
    else:
        yield _gate(
            atlas,
            f"config:{section}",
            name=section.replace("_", " "),
            trigger={**settings, "type": section},
            inject_contexts=settings.get("inject_contexts", ()),
            force_sync_trace=settings.get("require_sync_trace", False),
        )


def _confirmation(pattern: str) -> Plain:
    question = {
        "question_id": "confirm",
        "question": f"I want this call of {pattern} to happen, and I understand what it does.",
        "response_type": atlas_model.ResponseType.ACKNOWLEDGMENT,
    }
    return {"mode": atlas_model.Mode.BLOCKING, "questions": [question]}


MAX_WARNINGS = 100
"""That are told; what follows is counted."""
_SECRETS = re.compile(
    r"\b(pass(word|phrase|code)|api[ _-]?key|secret|credentials?|private key|access token|pin code)\b", re.IGNORECASE
)
_MAPPED = {"keyword_match": "it names no contexts", "action_pre": "it asks for nothing"}
_ALLOWING = (atlas_model.AtlasPolicyType.ALLOW, atlas_model.AtlasPolicyType.REQUIRES_APPROVAL)


def warnings_of(plain: Plain, atlas: atlas_model.Atlas, root: Node, faults: Faults) -> list[str]:
    """Each with its line, in the order of the file."""
    warnings = [*_actions(plain), *_capabilities(plain), *_checkpoints(plain), *_config(plain), *_notifications(plain)]
    warnings += _dead_ends(plain, atlas)
    by_line = sorted({(line_at(root, path), message) for path, message in warnings})
    messages = [f"{faults.at(line)}: {message}" for line, message in by_line[:MAX_WARNINGS]]
    if len(by_line) > MAX_WARNINGS:
        messages.append(f"and {len(by_line) - MAX_WARNINGS} more warnings")
    return messages


Warnings = Iterator[tuple[Path, str]]


def _actions(atlas: Plain) -> Warnings:
    action_ids = {action["action_id"] for action in atlas.get("actions", ())}
    seen: set[str] = set()
    for path, action in named_actions(atlas):
        if STAR not in action and action not in action_ids and action not in seen:
            seen.add(action)
            yield (path, f"the action `{action}` is not declared in `actions`: only its tool says how risky it is.")
    allowing = GlobIndex[bool]((each, True) for each in _allowing(atlas))
    denials = (policy for _, policy in entries(atlas, "policies") if policy["type"] == atlas_model.AtlasPolicyType.DENY)
    denying = GlobIndex[bool]((pattern, True) for policy in denials for pattern in policy["actions"])
    for path, declaration in entries(atlas, "actions"):
        id = declaration["action_id"]
        if not allowing.find(id) and not denying.find(id):
            yield (
                path,
                f"nothing can ever allow the action `{id}`: put it into a capability, or allow it by a policy.",
            )


def _dead_ends(plain: Plain, atlas: atlas_model.Atlas) -> Warnings:
    """Each action where it is named first."""
    reasons = unreachable_actions(atlas)
    if reasons is None:
        yield (), "it is too large to be searched for actions that no sequence of answers lets run."
        return
    for path, action in named_actions(plain) if reasons else ():
        if "trigger" not in path and (reason := reasons.pop(action, None)) is not None:
            what = "actions" if STAR in action else "action"
            yield path, f"no sequence of answers lets the {what} `{action}` run: {reason}."


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
        if checkpoint["mode"] != atlas_model.Mode.OBSERVATIONAL:
            ids.update(checkpoint["trigger"].get("capability_ids", ()))
    return ids


def _checkpoints(atlas: Plain) -> Warnings:
    for path, checkpoint in entries(atlas, "checkpoints"):
        if checkpoint["mode"] != atlas_model.Mode.BLOCKING and "max_attempts" in checkpoint:
            yield (
                (*path, "max_attempts"),
                f"nobody answers a checkpoint that is {checkpoint['mode']}: `max_attempts` does nothing.",
            )
        if checkpoint["trigger"]["type"] == atlas_model.TriggerType.SESSION_END:
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


MAX_CHANGES = 500
"""So many are listed; all are counted."""
MAX_VALUE = 2000
"""Characters of a text in a listed change."""
MAX_ITEMS = 100


Things = dict[str, Any]


def difference(before: atlas_model.Atlas, after: atlas_model.Atlas) -> atlas_model.AtlasDiff:
    changes: list[atlas_model.AtlasChange] = []
    counts = {"added": 0, "removed": 0, "changed": 0}
    for change in _changes(before, after):
        counts[change.change] += 1
        if len(changes) < MAX_CHANGES:
            changes.append(change)
    return atlas_model.AtlasDiff(
        atlas_id=after.atlas_id, before=before.version, after=after.version, changes=changes, **counts
    )


def _changes(before: atlas_model.Atlas, after: atlas_model.Atlas) -> Iterator[atlas_model.AtlasChange]:
    yield from _compared("atlas", _whole(before), _whole(after), dict)
    yield from _compared("gate", _by(before.gates, "gate_id"), _by(after.gates, "gate_id"), _gate_fields)
    yield from _compared("question", _questions(before), _questions(after), _fields_without("question_id"))
    sections = {"context": "contexts", "capability": "capabilities", "policy": "policies", "action": "actions"}
    for kind, section in sections.items():
        id = f"{kind}_id"
        old, new = _by(getattr(before, section), id), _by(getattr(after, section), id)
        yield from _compared(kind, old, new, _fields_without(id))


def _compared(
    kind: Any, before: Things, after: Things, fields: Callable[[Any], dict[str, Any]]
) -> Iterator[atlas_model.AtlasChange]:
    for id in sorted(before.keys() | after.keys()):
        if id not in before:
            yield atlas_model.AtlasChange(change="added", kind=kind, id=id, fields=[])
        elif id not in after:
            yield atlas_model.AtlasChange(change="removed", kind=kind, id=id, fields=[])
        elif before[id] != after[id] and (changes := list(_fields(fields(before[id]), fields(after[id])))):
            yield atlas_model.AtlasChange(change="changed", kind=kind, id=id, fields=changes)


def _fields(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[FieldChange]:
    for name in sorted(before.keys() | after.keys()):
        if before.get(name) != after.get(name):
            yield FieldChange(field=name, before=_short(before.get(name)), after=_short(after.get(name)))


def _whole(atlas: atlas_model.Atlas) -> Things:
    steward = {f"steward.{name}": value for name, value in _json(atlas.steward).items()}
    budget = {f"budget.{name}": value for name, value in _json(atlas.budget).items()}
    return {atlas.atlas_id: {"name": atlas.name, "description": atlas.description, **steward, **budget}}


def _questions(atlas: atlas_model.Atlas) -> Things:
    return {f"{gate.gate_id}/{question.question_id}": question for gate in atlas.gates for question in gate.questions}


def _by(things: Iterable[Any], id: str) -> Things:
    return {getattr(thing, id): thing for thing in things}


def _gate_fields(gate: atlas_model.Gate) -> dict[str, Any]:
    """Without its questions, which are compared one by one; their order is the gate's."""
    fields = _json(gate)
    for name in ("gate_id", "atlas_id"):
        del fields[name]
    fields["questions"] = [question.question_id for question in gate.questions]
    return _flat(fields, "trigger", "guidance")


def _fields_without(id: str) -> Callable[[Any], dict[str, Any]]:
    def fields(thing: Any) -> dict[str, Any]:
        data = _json(thing)
        del data[id]
        return _flat(data, "validation")

    return fields


def _flat(fields: dict[str, Any], *parts: str) -> dict[str, Any]:
    """What is a value of its own is compared field by field, too."""
    for part in parts:
        inner = fields.pop(part, None)
        if isinstance(inner, dict):
            fields |= {f"{part}.{name}": value for name, value in inner.items()}
        elif inner is not None:
            fields[part] = inner
    return fields


def _json(value: Any) -> dict[str, Any]:
    data: dict[str, Any] = adapter(type(value)).dump_python(value, mode="json")
    return data


def _short(value: Any) -> Any:
    """A long text by its beginning, its length and its digest, so that two of them differ here, too."""
    match value:
        case str() if len(value) > MAX_VALUE:
            digest = hashlib.sha256(value.encode()).hexdigest()[:12]
            return f"{value[:MAX_VALUE]}… ({len(value)} characters, sha256 {digest}…)"
        case list():
            items = [_short(item) for item in value[:MAX_ITEMS]]
            digest = hashlib.sha256(orjson.dumps(value)).hexdigest()[:12]
            more = [f"… ({len(value)} in all, sha256 {digest}…)"] if len(value) > MAX_ITEMS else []
            return [*items, *more]
        case dict():
            return {name: _short(item) for name, item in value.items()}
    return value
