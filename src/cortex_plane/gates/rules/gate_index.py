"""Atlases made ready for evaluation: whatever may match is found without looking at the rest. Made once for each digest."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from cortex_plane.agents.model.tools import RISKS, Risk, highest_risk
from cortex_plane.gates.model.atlases import (
    Action,
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    Capability,
    ContextBlock,
    Gate,
    GateBudget,
    Mode,
    TriggerType,
)
from cortex_plane.gates.rules.keywords import KeywordIndex
from cortex_plane.kernel.glob_index import GlobIndex
from cortex_plane.kernel.schemas import Unusable, compiled

_LOOKED_AT = tuple(AtlasPolicyType)
MAX_LOOKED_UP = 4096
"""Actions of which is remembered what concerns them."""
MAX_PREPARED = 500
"""Schemas that are compiled ahead of their first use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class OfAction:
    """All that atlases say about one action, whatever the session."""

    before: tuple[Gate, ...]
    capabilities: tuple[str, ...]
    policies: tuple[tuple[str, AtlasPolicy], ...]
    """In the order in which they are looked at."""
    declared: tuple[Action, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Round:
    """The gates of one atlas that come round together."""

    name: str
    """Under which a session remembers when they did."""
    atlas_id: str
    every: float
    gates: tuple[Gate, ...]


class CompiledAtlases:
    """The atlases that one session is bound to, as one. Ids are made unique: `atlas/id`."""

    def __init__(self, atlases: Sequence[Atlas]) -> None:
        self.atlases = tuple(atlases)
        self.gates: dict[str, Gate] = {gate.key: gate for atlas in atlases for gate in atlas.gates}
        self.contexts: dict[str, ContextBlock] = {
            f"{atlas.atlas_id}/{context.context_id}": context
            for atlas in atlases
            for context in atlas.contexts
        }
        self.capabilities: dict[str, Capability] = {
            f"{atlas.atlas_id}/{each.capability_id}": each for atlas in atlases for each in atlas.capabilities
        }
        self.budget = _tightest([atlas.budget for atlas in atlases])
        self._looked_up: dict[str, OfAction] = {}
        self._sort_gates()
        self._sort_guards()
        self._capable = GlobIndex[str](
            (pattern, key) for key, capability in self.capabilities.items() for pattern in capability.actions
        )
        self._actions: dict[str, list[Action]] = {}
        for atlas in atlases:
            for action in atlas.actions:
                self._actions.setdefault(action.action_id, []).append(action)
        self._policies = GlobIndex[tuple[str, AtlasPolicy]](
            (pattern, (f"{atlas.atlas_id}/{policy.policy_id}", policy))
            for atlas in atlases
            for policy in atlas.policies
            for pattern in policy.actions
        )

    def _sort_gates(self) -> None:
        self._by_type: dict[TriggerType, list[Gate]] = {kind: [] for kind in TriggerType}
        self._plain: dict[str, list[Gate]] = {}
        for gate in self.gates.values():
            self._by_type[gate.trigger.type].append(gate)
            self._plain.setdefault(gate.gate_id, []).append(gate)
        for gates in self._by_type.values():
            gates.sort(key=rank)
        self.once: dict[str, list[Gate]] = {atlas.atlas_id: [] for atlas in self.atlases}
        """By atlas: what fires when a session meets it."""
        for gate in (*self.of(TriggerType.SESSION_START), *self.of(TriggerType.INTERACTIVE)):
            self.once[gate.atlas_id].append(gate)
        self.blocking_custom = tuple(
            gate for gate in self.of(TriggerType.CUSTOM) if gate.mode is Mode.BLOCKING
        )
        """They hold up whoever cannot ask their triggers."""
        self.restricting_custom = tuple(
            gate for gate in self.of(TriggerType.CUSTOM) if gate.restricts and gate.mode is not Mode.BLOCKING
        )
        """What they forbid is forbidden to whoever cannot ask their triggers."""
        self.timed = self._rounds(TriggerType.TIME_INTERVAL)
        self.counting = self._rounds(TriggerType.COUNT_INTERVAL)
        self._before, self._after, self._requested = (
            self._globs(kind)
            for kind in (TriggerType.ACTION_PRE, TriggerType.ACTION_POST, TriggerType.EXPLICIT_REQUEST)
        )
        self._risky: dict[Risk, list[Gate]] = {
            tier: [
                gate
                for gate in self.of(TriggerType.RISK_THRESHOLD)
                if gate.trigger.min_tier is not None
                and RISKS.index(gate.trigger.min_tier) <= RISKS.index(tier)
            ]
            for tier in Risk
        }

    def _sort_guards(self) -> None:
        self._of_capability: dict[str, list[Gate]] = {}
        for gate in self.of(TriggerType.CAPABILITY_ACCESS):
            for capability in gate.trigger.capability_ids:
                self._of_capability.setdefault(f"{gate.atlas_id}/{capability}", []).append(gate)
        self._guards: dict[str, list[Gate]] = {
            key: guards
            for key, gates in self._of_capability.items()
            if (guards := [gate for gate in gates if gate.mode is not Mode.OBSERVATIONAL])
        }
        self._shut_at_first = self._closed()

        self._ending: dict[str, list[str]] = {}
        for gate in self.gates.values():
            until = gate.guidance.expires_after if gate.guidance is not None else None
            if until is not None and until != gate.gate_id:
                self._ending.setdefault(f"{gate.atlas_id}/{until}", []).append(gate.key)

    def ends_with(self, key: str) -> Sequence[str]:
        """The gates whose guidance lasts until this one is passed."""
        return self._ending.get(key, ())

    def _globs(self, kind: TriggerType) -> GlobIndex[Gate]:
        return GlobIndex(
            (pattern, gate) for gate in self._by_type[kind] for pattern in gate.trigger.patterns or ("*",)
        )

    def _rounds(self, kind: TriggerType) -> tuple[Round, ...]:
        found: dict[tuple[str, float], list[Gate]] = {}
        for gate in self._by_type[kind]:
            every = gate.trigger.seconds if kind is TriggerType.TIME_INTERVAL else gate.trigger.actions
            found.setdefault((gate.atlas_id, every or 1), []).append(gate)
        return tuple(
            Round(name=f"{atlas}@{every}", atlas_id=atlas, every=every, gates=tuple(gates))
            for (atlas, every), gates in found.items()
        )

    def _closed(self) -> frozenset[str]:
        """The capabilities that are locked before any gate has done anything."""
        opened = {
            f"{gate.atlas_id}/{each}"
            for gate in self.gates.values()
            if gate.mode is not Mode.OBSERVATIONAL
            for each in gate.unlock_capabilities
        }
        only_watched = {key for key in self._of_capability if not self.guards(key)}
        return frozenset(
            key
            for key, capability in self.capabilities.items()
            if key in opened or self.guards(key) or (capability.locked and key not in only_watched)
        )

    def of(self, kind: TriggerType) -> list[Gate]:
        """In the order of their priorities."""
        return self._by_type[kind]

    @cached_property
    def keywords(self) -> KeywordIndex:
        return KeywordIndex(self.of(TriggerType.KEYWORD))

    @property
    def globs(self) -> tuple[GlobIndex[Any], ...]:
        return self._before, self._after, self._requested, self._capable, self._policies

    def prepare(self) -> None:
        """Make what is made only when it is asked for: whoever compiles in a thread of its own does it there."""
        _ = self.keywords, self.known_actions
        for schema in itertools.islice(self._schemas(), MAX_PREPARED):
            with contextlib.suppress(Unusable):
                compiled(dict(schema))

    def _schemas(self) -> Iterator[Mapping[str, Any]]:
        for atlas in self.atlases:
            yield from (
                each.parameters_schema for each in atlas.actions if each.parameters_schema is not None
            )
            for gate in atlas.gates:
                yield from (each.schema for each in gate.questions if each.schema is not None)

    def of_action(self, action: str) -> OfAction:
        found = self._looked_up.get(action)
        if found is None:
            found = OfAction(
                before=tuple(_once(self._before.find(action))),
                capabilities=tuple(dict.fromkeys(self._capable.find(action))),
                policies=self._ordered(action),
                declared=tuple(self._actions.get(action, ())),
            )
            if len(self._looked_up) >= MAX_LOOKED_UP:
                self._looked_up.clear()
            self._looked_up[action] = found
        return found

    def _ordered(self, action: str) -> tuple[tuple[str, AtlasPolicy], ...]:
        found = {key: (key, policy) for key, policy in self._policies.find(action)}
        return tuple(sorted(found.values(), key=lambda each: _LOOKED_AT.index(each[1].type)))

    def after(self, action: str) -> list[Gate]:
        return _once(self._after.find(action))

    def requested(self, what: str) -> list[Gate]:
        return _once(self._requested.find(what))

    def risky(self, tier: Risk) -> list[Gate]:
        return self._risky[tier]

    def gates_of_capability(self, capability: str) -> list[Gate]:
        return self._of_capability.get(capability, [])

    def guards(self, capability: str) -> list[Gate]:
        """The gates that must be passed to open it: those that only look on hold nobody up."""
        return self._guards.get(capability, [])

    def begins_open(self, capability: str) -> bool:
        return capability not in self._shut_at_first

    def policies_of(self, action: str) -> list[tuple[str, AtlasPolicy]]:
        """In the order in which they are looked at."""
        return list(self.of_action(action).policies)

    def risk_of(self, action: str, own: Risk) -> Risk:
        declared = self.of_action(action).declared
        return highest_risk(own, *(each.risk_tier for each in declared)) if declared else own

    @cached_property
    def known_actions(self) -> tuple[str, ...]:
        """Every action that an atlas names without a star."""
        named = dict.fromkeys(self._actions)
        for capability in self.capabilities.values():
            named.update(dict.fromkeys(each for each in capability.actions if "*" not in each))
        for atlas in self.atlases:
            for policy in atlas.policies:
                named.update(dict.fromkeys(each for each in policy.actions if "*" not in each))
        return tuple(named)

    def named(self, id: str) -> list[Gate]:
        """By key, or by its plain id."""
        gate = self.gates.get(id)
        return [gate] if gate is not None else self._plain.get(id, [])


def rank(gate: Gate) -> tuple[int, str]:
    return -gate.priority, gate.key


def _once(gates: list[Gate]) -> list[Gate]:
    return list({gate.key: gate for gate in gates}.values())


def _tightest(budgets: Sequence[GateBudget]) -> GateBudget:
    def least(name: str) -> float | None:
        return min((each for budget in budgets if (each := getattr(budget, name)) is not None), default=None)

    most, size = least("max_checkpoints_per_input"), least("max_context_injection_size")
    return GateBudget(
        max_checkpoints_per_input=None if most is None else int(most),
        max_context_injection_size=None if size is None else int(size),
        max_checkpoint_time_ms=least("max_checkpoint_time_ms"),
    )
