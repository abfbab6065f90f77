"""What an atlas says about one action or one capability."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cortex_plane.gates.model.atlases import (
    Atlas,
    AtlasPolicyType,
    AtlasRules,
    Gate,
    GateRelation,
    GateRule,
    TriggerType,
)
from cortex_plane.gates.rules.index import rank
from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.kernel.globs import glob

_ORDER = tuple(AtlasPolicyType)


def rules_of(atlas: Atlas, action: str | None, capability: str | None) -> AtlasRules:
    """Of exactly one of the two."""
    if (action is None) == (capability is None):
        raise InvalidInput("Ask about an `action` or about a `capability`.", hint="Name exactly one of the two.")
    if capability is not None:
        capabilities = [each for each in atlas.capabilities if each.capability_id == capability]
        if not capabilities:
            names = ", ".join(each.capability_id for each in atlas.capabilities[:20]) or "none"
            raise InvalidInput(
                f"The atlas has no capability `{capability[:100]}`.", field="capability", hint=f"It has {names}."
            )
    else:
        capabilities = [each for each in atlas.capabilities if _matches(each.actions, action)]
    ids = {each.capability_id for each in capabilities}
    gates = [
        GateRule(gate=gate.gate_id, name=gate.name, mode=gate.mode, trigger=gate.trigger.type, priority=gate.priority,
                 audience=gate.audience, min_tier=gate.trigger.min_tier, relations=relations,
                 questions=[question.question_id for question in gate.questions])
        for gate in sorted(atlas.gates, key=rank)
        if (relations := list(_relations(gate, action, ids)))
    ]  # fmt: skip
    policies = [policy for policy in atlas.policies if action is not None and _matches(policy.actions, action)]
    return AtlasRules(
        atlas_id=atlas.atlas_id, version=atlas.version, action=action, capability=capability, gates=gates,
        capabilities=capabilities, policies=sorted(policies, key=lambda each: _ORDER.index(each.type)),
        declared=next((each for each in atlas.actions if each.action_id == action), None),
    )  # fmt: skip


def _relations(gate: Gate, action: str | None, capabilities: set[str]) -> Iterator[GateRelation]:
    trigger = gate.trigger
    if trigger.type is TriggerType.CAPABILITY_ACCESS and not capabilities.isdisjoint(trigger.capability_ids):
        yield GateRelation.GUARDS
    if not capabilities.isdisjoint(gate.unlock_capabilities):
        yield GateRelation.UNLOCKS
    if not capabilities.isdisjoint(gate.lock_capabilities):
        yield GateRelation.LOCKS
    if action is None:
        return
    if trigger.type is TriggerType.ACTION_PRE and _matches(trigger.patterns, action):
        yield GateRelation.BEFORE
    if trigger.type is TriggerType.RISK_THRESHOLD:
        yield GateRelation.RISK
    if trigger.type is TriggerType.ACTION_POST and _matches(trigger.patterns, action):
        yield GateRelation.AFTER
    if _matches(gate.allow_actions, action):
        yield GateRelation.ALLOWS
    if _matches(gate.deny_actions, action):
        yield GateRelation.DENIES


def _matches(patterns: Sequence[str], action: str | None) -> bool:
    return action is not None and any(glob(pattern).matches(action) for pattern in patterns)
