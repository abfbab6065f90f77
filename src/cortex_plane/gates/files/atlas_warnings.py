"""What is probably not meant in an atlas, though it can be read."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from cortex_plane.gates.files.atlas_checks import EFFECTS, Path, Plain, entries, line_at
from cortex_plane.gates.files.atlas_crowds import everything
from cortex_plane.gates.model.atlases import AtlasPolicyType, Mode, TriggerType
from cortex_plane.gates.rules.gate_effects import MAX_FIRED
from cortex_plane.kernel.documents import Faults, Node
from cortex_plane.kernel.glob_index import GlobIndex
from cortex_plane.kernel.globs import STAR

MAX_WARNINGS = 100
"""That are told; what follows is counted."""
_SECRETS = re.compile(
    r"\b(pass(word|phrase|code)|api[ _-]?key|secret|credentials?|private key|access token|pin code)\b",
    re.IGNORECASE,
)
_RESTRICTS = ("lock_capabilities", "deny_actions", "require_policy_check")
_MAPPED = {"keyword_match": "it names no contexts", "action_pre": "it asks for nothing"}
_ALLOWING = (AtlasPolicyType.ALLOW, AtlasPolicyType.REQUIRES_APPROVAL)


def warnings_of(atlas: Plain, root: Node, faults: Faults) -> list[str]:
    """Each with its line, in the order of the file."""
    found = [
        *_actions(atlas),
        *_capabilities(atlas),
        *_checkpoints(atlas),
        *_config(atlas),
        *_crowd(atlas),
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


def _crowd(atlas: Plain) -> Warnings:
    """By trigger: those that neither block nor restrict are left out where too many fire."""
    count = Counter[str]()
    for path, each in entries(atlas, "checkpoints"):
        kind = each["trigger"]["type"]
        due = each["mode"] == Mode.BLOCKING or any(each.get(key) for key in _RESTRICTS)
        if not due and everything(each["trigger"]):
            count[kind] += 1
            if count[kind] == MAX_FIRED + 1:
                yield (
                    path,
                    f"from here on checkpoints of the type {kind} are left out: {MAX_FIRED} fire at one moment.",
                )


def _notifications(atlas: Plain) -> Warnings:
    given: dict[str, Any] = atlas["steward"].get("notifications", {})
    webhook, triggers = given.get("channels", {}).get("webhook"), given.get("triggers")
    path: Path = ("steward", "notifications")
    if triggers and webhook is None:
        yield (*path, "triggers"), "there is no `webhook` in `channels`: nobody is told."
    if webhook is not None and not triggers:
        yield (*path, "channels"), "there are no `triggers`: the webhook is never called."
