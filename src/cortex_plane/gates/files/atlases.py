"""Atlas files: YAML or JSON into an atlas.

A file is read into plain values first, which are the manifest: the same content has the same manifest and the same digest,
whatever its format, its comments and the order of its keys. The atlas is always made from the manifest.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import orjson

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.files.atlas_checks import Checks
from cortex_plane.gates.files.atlas_gates import Plain, gates_of
from cortex_plane.gates.files.atlas_shapes import ATLAS
from cortex_plane.gates.files.atlas_warnings import unlockable, warnings_of
from cortex_plane.gates.model.atlases import (
    MAX_ATLAS_BYTES,
    MAX_GATES,
    AccessType,
    Action,
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    Capability,
    ContextBlock,
    GateBudget,
    InjectMode,
    Steward,
)
from cortex_plane.kernel.document_values import Values
from cortex_plane.kernel.documents import Bounds, Faults, Mapping, Node, read_document
from cortex_plane.kernel.json_documents import looks_like_json, read_json
from cortex_plane.policies.model.policies import Template

HINT = "Correct the file and try again; nothing was changed. Its format is in docs/guides/atlases.md."
BOUNDS = Bounds(MAX_ATLAS_BYTES, depth=40, nodes=10 * MAX_GATES)
_NO_TIME = 0


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
    root = (read_json if is_json else read_document)(text, faults, BOUNDS)
    node, plain = _plain(root, faults)
    manifest = orjson.dumps(plain, option=orjson.OPT_SORT_KEYS)
    return Read(atlas=compiled(manifest), warnings=warnings_of(plain, node, faults), manifest=manifest)


def _plain(root: Node | None, faults: Faults) -> tuple[Node, Plain]:
    if not isinstance(root, Mapping) or not root.items:
        line = root.line if root is not None else 1
        faults.refuse(line, f"an atlas is a mapping with {', '.join(ATLAS.fields)}.")
    plain = ATLAS.read(root, "atlas", Values(faults, _NO_TIME, {}))
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
