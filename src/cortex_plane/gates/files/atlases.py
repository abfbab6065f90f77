"""Reads an atlas file: YAML or JSON into an atlas, with errors and warnings by line."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.files.checks import EFFECTS, Checks, Path, entries, line_at
from cortex_plane.gates.files.gates import Plain, gates_of
from cortex_plane.gates.files.keys import ATLAS
from cortex_plane.gates.model.atlases import (
    MAX_ATLAS_BYTES,
    AccessType,
    Action,
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    Capability,
    ContextBlock,
    GateBudget,
    InjectMode,
    Mode,
    Steward,
    TriggerType,
)
from cortex_plane.kernel.documents import (
    Bounds,
    Faults,
    MappingNode,
    Node,
    looks_like_json,
    read_document,
)
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


def _atlas(given: Plain, manifest: bytes) -> Atlas:
    locked = unlockable(given)
    return Atlas(
        atlas_id=given["atlas_id"],
        version=given["version"],
        name=given["name"],
        digest=hashlib.sha256(manifest).hexdigest(),
        steward=_steward(given["steward"]),
        description=given.get("description", ""),
        gates=tuple(gates_of(given)),
        capabilities=tuple(_capability(each, locked) for each in given.get("capabilities", ())),
        contexts=tuple(_context(each) for each in given.get("context_blocks", ())),
        policies=tuple(_policy(each) for each in given.get("policies", ())),
        actions=tuple(_action(each) for each in given.get("actions", ())),
        budget=GateBudget(**given.get("checkpoint_config", {}).get("budget", {})),
    )


def _steward(given: Plain) -> Steward:
    access, told = given.get("access", {}), given.get("notifications", {})
    return Steward(
        id=given["id"],
        name=given["name"],
        contact=given.get("contact"),
        access=AccessType(access.get("type", AccessType.PUBLIC)),
        api_keys=tuple(access.get("api_keys", ())),
        requests_per_minute=access.get("rate_limit", {}).get("requests_per_minute"),
        webhook=told.get("channels", {}).get("webhook"),
        notify_on=tuple(dict.fromkeys(told.get("triggers", ()))),
    )


def _capability(given: Plain, locked: set[str]) -> Capability:
    id: str = given["capability_id"]
    return Capability(
        capability_id=id,
        name=given.get("name", id),
        actions=tuple(dict.fromkeys(given["actions"])),
        locked=id in locked,
    )


def _context(given: Plain) -> ContextBlock:
    return ContextBlock(
        context_id=given["context_id"],
        name=given.get("name") or given["context_id"],
        content=given["content"],
        inject_mode=InjectMode(given.get("inject_mode", InjectMode.ON_DEMAND)),
        priority=given.get("priority", 100),
    )


def _policy(given: Plain) -> AtlasPolicy:
    template = given.get("template")
    return AtlasPolicy(
        policy_id=given["policy_id"],
        type=AtlasPolicyType(given["type"]),
        actions=tuple(dict.fromkeys(given["actions"])),
        reason=given.get("reason", ""),
        max_calls=given.get("max_calls"),
        window_seconds=given.get("window_seconds"),
        template=None if template is None else Template(template),
    )


def _action(given: Plain) -> Action:
    return Action(
        action_id=given["action_id"],
        name=given.get("name") or given["action_id"],
        description=given.get("description", ""),
        risk_tier=Risk(given.get("risk_tier", Risk.LOW)),
        parameters_schema=given.get("parameters_schema"),
    )


MAX_WARNINGS = 100
"""That are told; what follows is counted."""
_SECRETS = re.compile(
    r"\b(pass(word|phrase|code)|api[ _-]?key|secret|credentials?|private key|access token|pin code)\b",
    re.IGNORECASE,
)
_MAPPED = {"keyword_match": "it names no contexts", "action_pre": "it asks for nothing"}
_ALLOWING = (AtlasPolicyType.ALLOW, AtlasPolicyType.REQUIRES_APPROVAL)


def warnings_of(atlas: Plain, root: Node, faults: Faults) -> list[str]:
    """Each with its line, in the order of the file."""
    found = [
        *_actions(atlas),
        *_capabilities(atlas),
        *_checkpoints(atlas),
        *_config(atlas),
        *_notifications(atlas),
    ]
    placed = sorted({(line_at(root, path), said) for path, said in found})
    told = [f"{faults.at(line)}: {said}" for line, said in placed[:MAX_WARNINGS]]
    if len(placed) > MAX_WARNINGS:
        told.append(f"and {len(placed) - MAX_WARNINGS} more warnings")
    return told


Warnings = Iterator[tuple[Path, str]]


def _actions(atlas: Plain) -> Warnings:
    declared = {each["action_id"] for each in atlas.get("actions", ())}
    told: set[str] = set()
    for path, action in _named(atlas):
        if STAR not in action and action not in declared and action not in told:
            told.add(action)
            yield (
                path,
                f"the action `{action}` is not declared in `actions`: only its tool says how risky it is.",
            )
    allowed = GlobIndex[bool]((each, True) for each in _allowing(atlas))
    denied = GlobIndex[bool](
        (pattern, True) for _, policy in entries(atlas, "policies") if policy["type"] == AtlasPolicyType.DENY
        for pattern in policy["actions"]
    )  # fmt: skip
    for path, declaration in entries(atlas, "actions"):
        id = declaration["action_id"]
        if not allowed.find(id) and not denied.find(id):
            yield (
                path,
                f"nothing can ever allow the action `{id}`: put it into a capability, or allow it by a policy.",
            )


def _named(atlas: Plain) -> Iterator[tuple[Path, str]]:
    for section in ("capabilities", "policies"):
        for path, each in entries(atlas, section):
            for number, action in enumerate(each["actions"]):
                yield (*path, "actions", number), action
    for path, each in entries(atlas, "checkpoints"):
        if each["trigger"]["type"] in (TriggerType.ACTION_PRE, TriggerType.ACTION_POST):
            for number, action in enumerate(each["trigger"]["patterns"]):
                yield (*path, "trigger", "patterns", number), action
        for key in ("allow_actions", "deny_actions"):
            for number, action in enumerate(each.get(key, ())):
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
    locked: dict[str, str] = {}
    for _, each in entries(atlas, "checkpoints"):
        for capability in each.get("lock_capabilities", ()):
            locked.setdefault(capability, each["checkpoint_id"])
    opened = unlockable(atlas)
    for path, capability in entries(atlas, "capabilities"):
        id = capability["capability_id"]
        if id in locked and id not in opened:
            yield path, f"`{locked[id]}` locks the capability `{id}`, and nothing unlocks it again."


def unlockable(atlas: Plain) -> set[str]:
    """Capabilities that some gate opens, or stands before: they begin locked."""
    found: set[str] = set()
    for each in atlas.get("checkpoints", ()):
        found.update(each.get("unlock_capabilities", ()))
        # Whoever only watches stands before nothing.
        if each["mode"] != Mode.OBSERVATIONAL:
            found.update(each["trigger"].get("capability_ids", ()))
    return found


def _checkpoints(atlas: Plain) -> Warnings:
    for path, each in entries(atlas, "checkpoints"):
        if each["mode"] != Mode.BLOCKING and "max_attempts" in each:
            yield (
                (*path, "max_attempts"),
                f"nobody answers a checkpoint that is {each['mode']}: `max_attempts` does nothing.",
            )
        if each["trigger"]["type"] == TriggerType.SESSION_END:
            for key in EFFECTS:
                if each.get(key):
                    yield (*path, key), f"`{key}` comes too late: the session ends."
        for number, question in enumerate(each.get("questions", ())):
            if _SECRETS.search(f"{question['question']} {question.get('hint', '')}"):
                yield (
                    (*path, "questions", number, "question"),
                    "do not ask for credentials: answers are kept on the trail.",
                )


def _config(atlas: Plain) -> Warnings:
    """What the short form names without saying what for."""
    for section, given in atlas.get("checkpoint_config", {}).items():
        path: Path = ("checkpoint_config", section)
        if section == "budget" or not given.get("enabled", True):
            continue
        if section in _MAPPED:
            for key, wanted in given.get("mappings", {}).items():
                if not (any(wanted.values()) if isinstance(wanted, dict) else wanted):
                    yield (
                        (*path, "mappings", key),
                        f"{_MAPPED[section]}: the mapping does nothing but record.",
                    )
        elif not given.get("inject_contexts") and not given.get("require_sync_trace"):
            yield path, f"`{section}` has no `inject_contexts`: it does nothing but record."


def _notifications(atlas: Plain) -> Warnings:
    given: dict[str, Any] = atlas["steward"].get("notifications", {})
    webhook, triggers = given.get("channels", {}).get("webhook"), given.get("triggers")
    path: Path = ("steward", "notifications")
    if triggers and webhook is None:
        yield (*path, "triggers"), "there is no `webhook` in `channels`: nobody is told."
    if webhook is not None and not triggers:
        yield (*path, "channels"), "there are no `triggers`: the webhook is never called."
