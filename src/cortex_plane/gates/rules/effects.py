"""What gates do when they fire or pass: capabilities, guidance, questions, and notices to stewards."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from operator import attrgetter
from typing import Any

import orjson

from cortex_plane.gates.model import gates
from cortex_plane.gates.model.atlases import MAX_CONTEXT, Atlas, AtlasPolicyType, Gate, Mode, TriggerType
from cortex_plane.gates.model.gates import ActionRule, ActiveGuidance, CapabilityState, GateState, Open, Shut, Trace
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.fields import RISKS, Risk
from cortex_plane.sessions.model.events import TraceType

# What holds whatever an atlas says: a session costs no more than this, whoever wrote the atlas.
MAX_FIRED = 200
"""Gates that fire at one moment. Only those that ask and forbid nothing are left out beyond it."""
MAX_CARRIED = 2 * MAX_CONTEXT
"""Characters of contexts and guidance that a session carries."""
MAX_STATE = 256 * 1024
"""Bytes that the gates of a session remember, as a row keeps them."""
FEW_ENTRIES = 300
"""So many entries are never too much, and are not measured."""
MAX_NAMED = 50
"""Names that one trace lists."""
AT_ONCE = "max_gates_at_once"
TOO_MUCH = f"the gates of this session have more to remember than the {MAX_STATE // 1024} kB that there are for it"

SESSION_END = "session-end"
_TIME = re.compile(r"(\d{1,6})\s*(s|m|h|d)")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_PLAIN_FIELDS = ("started", "heard", "executed", "since")
_CHANGING = {
    name: name
    for name in (
        "passed", "open", "people", "cards", "passes", "answers", "shut", "tried", "capabilities", "actions", "contexts",
        "guidance", "counted", "spent",
    )
} | {"fired_at": "fired"}  # fmt: skip
"""What an evaluation may change, and the field of the state that it is."""
_values_of_run = attrgetter(*_CHANGING)
_values_of_state = attrgetter(*_CHANGING.values())


def seconds_of(text: str) -> int | None:
    """`10m` as seconds; None where it is no time."""
    match = _TIME.fullmatch(text)
    return int(match[1]) * _SECONDS[match[2]] if match else None


Elapsed = Callable[[], float]
"""Milliseconds that an evaluation took up to now."""


def no_time() -> float:
    return 0.0


class EvaluationRun:
    """One evaluation. Everything that happens in it is traced; not where somebody is only ``looking``, who wants a verdict."""

    def __init__(
        self, atlases: CompiledAtlases, state: GateState, now: datetime, *, looking: bool = False,
        elapsed: Elapsed = no_time,
    ) -> None:  # fmt: skip
        self.atlases, self.now, self.looking, self._state, self.elapsed = atlases, now, looking, state, elapsed
        self.passed = dict(state.passed)
        self.open = list(state.open)
        self.people = list(state.people)
        self.cards = list(state.cards)
        self.passes = list(state.passes)
        self.answers = list(state.answers)
        self.shut = list(state.shut)
        self.tried = dict(state.tried)
        self.capabilities = dict(state.capabilities)
        self.actions = dict(state.actions)
        self.contexts = dict(state.contexts)
        self.guidance = dict(state.guidance)
        self.fired_at = dict(state.fired)
        self.counted = dict(state.counted)
        self.spent = dict(state.spent)
        self.executed = state.executed
        self.traces: list[Trace] = []
        self.fired: list[Gate] = []
        self._overfull = False
        self._asking: set[str] | None = None
        """The gates that ask the session, once one fires; until then the open questions may change."""
        self._carried: int | None = None
        """Characters of contexts and guidance, once they were counted."""

    @property
    def rights_changed(self) -> bool:
        return self.capabilities != self._state.capabilities or self.actions != self._state.actions

    def state(self, **changes: Any) -> GateState:
        """As it was, the very same value, where nothing changed."""
        state = self._state
        if self.looking:
            return state
        different = {name: value for name, value in changes.items() if getattr(state, name) != value}
        for field, value, before in zip(_CHANGING.values(), _values_of_run(self), _values_of_state(state), strict=True):
            if (value or before) and (after := tuple(value) if type(value) is list else value) != before:
                different[field] = after
        if not different:
            return state
        changed = replace(state, **different)
        return self._shut_all(different) if _too_much(changed) else changed

    def _shut_all(self, changes: Mapping[str, Any]) -> GateState:
        """What there was stays as it was, and the session goes no further: nothing that a gate asked for is forgotten."""
        if self._state.ended is not None:
            return self._state
        gate = self.fired[-1] if self.fired else next(iter(self.atlases.gates.values()), None)
        if gate is not None and not self._overfull:
            self.blocked(gate, TOO_MUCH)
        self._overfull = True
        plain = {name: value for name, value in changes.items() if name in _PLAIN_FIELDS}
        shut = (*self._state.shut, Shut(gate=gate.key if gate is not None else gates.EVERY_CALL, reason=TOO_MUCH))
        return replace(self._state, **plain, shut=shut)

    def trace(self, kind: TraceType, gate: Gate, **payload: Any) -> None:
        if not self.looking:
            self.traces.append(gates.trace(kind, gate, **payload))

    def triggered(self, gate: Gate, data: dict[str, Any]) -> None:
        if not self.looking:
            self.fired.append(gate)
            self.traces.append(gates.triggered(gate, data))

    def blocked(self, gate: Gate, reason: str, action: str = "") -> None:
        self.trace(TraceType.BLOCKED, gate, reason=reason, **({"blocked_action": action} if action else {}))

    def pass_gate(self, gate: Gate, *, guided: bool = False) -> None:
        """It is behind the agent: its effects hold from now on. ``guided``: its guidance was given with its questions."""
        if self.looking and not gate.decides:
            return
        if gate.trigger.type not in gates.FOR_ONE_CALL:
            self.passed[gate.key] = self.now
            self.cards = [card for card in self.cards if card.gate != gate.key]
        contexts = self._inject(gate)
        if not guided:
            self.guide(gate)
        capabilities = self.grant(gate)
        self.restrict(gate)
        self._drop_guidance(self.atlases.ends_with(gate.key))
        locks = {"locked_capabilities": gate.lock_capabilities} if gate.lock_capabilities else {}
        lists = _named(unlocked_capabilities=capabilities, injected_contexts=contexts, **locks)
        self.trace(TraceType.PASSED, gate, **lists)

    def remember_answers(self, answers: gates.GateAnswers) -> None:
        """In the place of earlier ones to the same gate about the same call."""
        about = (answers.gate, answers.action, answers.input_hash)
        others = [entry for entry in self.answers if (entry.gate, entry.action, entry.input_hash) != about]
        self.answers = [*others, answers][-gates.MAX_ANSWERED :]

    @property
    def opened(self) -> dict[str, Any]:
        """What is open now and was not before: capabilities, and actions by their globs."""
        before, capabilities = EvaluationRun(self.atlases, self._state, self.now), self.atlases.capabilities
        keys = [
            key for key in self.capabilities if key in capabilities and self.is_open(key) and not before.is_open(key)
        ]
        own = [rule for rule, state in self.actions.items() if state.allow and rule not in before.actions]
        actions = dict.fromkeys([*(action for key in keys for action in capabilities[key].actions), *own])
        return _named(opened_capabilities=keys, opened_actions=list(actions)) if actions else {}

    def grant(self, gate: Gate) -> list[str]:
        """What it opens and allows; the capabilities, by name."""
        capabilities = self._unlock(gate)
        for pattern in gate.allow_actions:
            self._rule(pattern, gate, allow=True)
        return capabilities

    def withhold(self) -> None:
        """What gates before a call granted just now counts for its verdict, and holds once it runs: asking opens nothing."""
        for name in ("capabilities", "actions"):
            rights, before = getattr(self, name), getattr(self._state, name)
            if rights == before:
                continue
            for key, right in list(rights.items()):
                gate = self.atlases.gates.get(right.by)
                grants = right.open if name == "capabilities" else right.allow
                if before.get(key) != right and grants and gate is not None and gate.trigger.type in gates.FOR_ONE_CALL:
                    del rights[key]
                    rights.update({key: before[key]} if key in before else {})

    def restrict(self, gate: Gate) -> None:
        """What it forbids: also where nobody knows whether it fires, and then nothing else of it."""
        for capability in gate.lock_capabilities:
            self._lock(f"{gate.atlas_id}/{capability}", gate)
        for pattern in gate.deny_actions:
            self._rule(pattern, gate, allow=False)

    def _rule(self, pattern: str, gate: Gate, *, allow: bool) -> None:
        """What one gate denies no other allows again."""
        rule = self.actions.get(pattern)
        if rule is not None and (not rule.allow or (allow and rule.by in self.atlases.gates)):
            return
        self.actions[pattern] = ActionRule(allow=allow, by=gate.key, at=self.now)

    def _inject(self, gate: Gate) -> list[str]:
        """Its contexts, as far as there is room for them."""
        contexts: list[str] = []
        if self.looking:
            return contexts
        for context_id in gate.contexts:
            key = f"{gate.atlas_id}/{context_id}"
            context = self.atlases.contexts.get(key)
            if context is None or key in self.contexts:
                continue
            size = self._size() + len(context.content)
            if size > self._most:
                self.trace(TraceType.SKIPPED, gate, context_id=context_id, reason="max_context_injection_size")
                continue
            self.contexts[key] = ActiveGuidance(by=gate.key, at=self.now)
            self._carried = size
            contexts.append(context_id)
        return contexts

    def guide(self, gate: Gate) -> None:
        """Its guidance: beside what was given before, or in the place of what its own atlas gave."""
        guidance = gate.guidance
        if guidance is None or self.looking:
            return
        prefix = f"{gate.atlas_id}/"
        old_keys = [key for key in self.guidance if not guidance.append and key != gate.key and key.startswith(prefix)]
        seconds = seconds_of(guidance.expires_after or "")
        if gate.key in self.guidance and seconds is None and not old_keys:
            return
        replaced_size = sum(self._guided(key) for key in {gate.key, *old_keys} if key in self.guidance)
        size = self._size() - replaced_size + len(guidance.content)
        if size > self._most:
            self.trace(TraceType.SKIPPED, gate, guidance=True, reason="max_context_injection_size")
            return
        until = self.now + timedelta(seconds=seconds) if seconds is not None else None
        self._drop_guidance(old_keys)
        self.guidance[gate.key] = ActiveGuidance(by=gate.key, at=self.now, until=until)
        self._carried = size

    @property
    def _most(self) -> int:
        most = self.atlases.budget.max_context_injection_size
        return MAX_CARRIED if most is None else min(most, MAX_CARRIED)

    def _size(self) -> int:
        """Characters that the session carries now: counted once, then kept up to date."""
        if self._carried is None:
            blocks = self.atlases.contexts
            self._carried = sum(len(blocks[key].content) for key in self.contexts if key in blocks)
            self._carried += sum(map(self._guided, self.guidance))
        return self._carried

    def _guided(self, key: str) -> int:
        gate = self.atlases.gates.get(key)
        return len(gate.guidance.content) if gate is not None and gate.guidance is not None else 0

    def drop_expired(self) -> None:
        guidance = self.guidance.items()
        self._drop_guidance([key for key, entry in guidance if entry.until is not None and entry.until <= self.now])

    def _drop_guidance(self, keys: Sequence[str]) -> None:
        for key in keys:
            if self.guidance.pop(key, None) is not None:
                self._carried = None

    def _unlock(self, gate: Gate) -> list[str]:
        """What it opens. Where several gates stand before a capability, the last of them opens it."""
        guarded_ids = gate.trigger.capability_ids if gate.trigger.type is TriggerType.CAPABILITY_ACCESS else ()
        capabilities = []
        for capability in dict.fromkeys((*gate.unlock_capabilities, *guarded_ids)):
            key = f"{gate.atlas_id}/{capability}"
            if capability in guarded_ids and any(guard.key not in self.passed for guard in self.atlases.guards(key)):
                continue
            if not self.is_open(key) or key not in self.capabilities:
                self.capabilities[key] = CapabilityState(open=True, by=gate.key, at=self.now)
            capabilities.append(capability)
        return capabilities

    def _lock(self, capability: str, gate: Gate) -> None:
        """Whoever passed its gates passes them again."""
        grip = self.capabilities.get(capability)
        if grip is None or grip.open:
            self.capabilities[capability] = CapabilityState(open=False, by=gate.key, at=self.now)
        for guard in self.atlases.gates_of_capability(capability):
            self.passed.pop(guard.key, None)
        gates = self.atlases.gates
        self.passes = [
            entry for entry in self.passes if entry.gate not in gates or not gates[entry.gate].unlocks(capability)
        ]

    def is_open(self, capability: str) -> bool:
        grip = self.capabilities.get(capability)
        if grip is None or (grip.open and grip.by not in self.atlases.gates):
            return self.atlases.begins_open(capability)
        return grip.open

    def fire(self, gate: Gate, data: dict[str, Any]) -> None:
        """A gate of the session: it asks, or it is passed at once."""
        self.triggered(gate, data)
        if gate.mode is Mode.OBSERVATIONAL:
            return
        if not (gate.asks or gate.asks_people):
            self.pass_gate(gate)
            return
        self.passed.pop(gate.key, None)
        if gate.asks:
            self._ask_session(gate)
        elif gate.key not in self.people:
            self.people.append(gate.key)

    def _ask_session(self, gate: Gate) -> None:
        if self._asking is None:
            self._asking = {question.gate for question in self.open if not question.call}
        if gate.key not in self._asking:
            self._asking.add(gate.key)
            self.open.append(Open(gate=gate.key, at=self.now))
        self.guide(gate)

    def ask_call(self, new: Open) -> Open:
        """As it is asked, with the tries that are left. At most so many at once; who leaves a question that was answered wrongly
        gets no fresh tries for it."""
        if any(entry.gate == new.gate and entry.action == gates.EVERY_CALL for entry in self.shut):
            return new
        questions = [question for question in self.open if question.call]
        if len(questions) >= gates.MAX_OPEN:
            oldest = min(questions, key=lambda each: each.attempts)
            gate = self.atlases.gates.get(oldest.gate)
            if oldest.attempts and gate is not None and gate.trigger.type in gates.FOR_ONE_CALL:
                self.shut_gate(gate, oldest, "it was left for too many other questions")
            else:
                self.open.remove(oldest)
        asking = self.atlases.gates.get(new.gate)
        if asking is not None and asking.trigger.type not in gates.FOR_ONE_CALL:
            new = replace(new, attempts=self.tried.get(new.gate, 0))
        self.open.append(new)
        return new

    def shut_gate(self, gate: Gate, which: Open, reason: str, *, for_all: bool = False) -> None:
        """For the session, for the capability, or for the call that it stopped; after many of those, ``for_all`` calls."""
        self.open.remove(which)
        mine = [entry for entry in self.shut if entry.gate == gate.key and entry.action]
        if not which.call:
            new = Shut(gate=gate.key, reason=reason)
        elif gate.trigger.type in gates.FOR_ONE_CALL and len(mine) < gates.MAX_SHUT and not for_all:
            new = Shut(gate=gate.key, reason=reason, action=which.action, input_hash=which.input_hash)
        else:
            self.shut = [entry for entry in self.shut if entry not in mine]
            # What it asked about other calls would open it again.
            self.open = [question for question in self.open if question.gate != gate.key or not question.call]
            new = Shut(gate=gate.key, reason=reason, action=gates.EVERY_CALL)
        self.shut.append(new)
        self.blocked(gate, reason, which.action)


def _too_much(state: GateState) -> bool:
    values = (getattr(state, name) for name in GateState.__slots__)
    entries = sum(len(value) for value in values if isinstance(value, dict | tuple))
    return entries > FEW_ENTRIES and len(orjson.dumps(gates.kept_state(state))) > MAX_STATE


def _named(**lists: Sequence[str]) -> dict[str, Any]:
    """As a trace lists them: the first of each, and how many more there are."""
    fields: dict[str, Any] = {name: list(ids[:MAX_NAMED]) for name, ids in lists.items()}
    more = {name: len(ids) - MAX_NAMED for name, ids in lists.items() if len(ids) > MAX_NAMED}
    return fields | ({"more": more} if more else {})


OVERRIDE, HIGH_RISK = "policy_override", "high_risk_action"
ON_THE_TRAIL = "the session's trail says why"
_KEPT_BACK = frozenset({"answers", "faults"})
_WRITTEN = frozenset({"error", "requested"})
"""Of what fired a gate: what tools and agents wrote."""
_PLAIN_REASONS = frozenset({gates.UNANSWERED, TOO_MUCH})
"""They say the same whatever was answered."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RanCall:
    """A call that this very write sends."""

    action: str
    risk: Risk
    """The tool's own; of it and the atlases', the higher counts."""
    call_id: str | None = None


def notices(governing: CompiledAtlases, traces: Sequence[Trace], ran: Sequence[RanCall] = ()) -> list[dict[str, Any]]:
    """For `more.gates.notices` of the write that records ``traces`` and sends ``ran``; empty where no steward wants any."""
    subscribers = [atlas for atlas in governing.atlases if atlas.steward.webhook and atlas.steward.notify_on]
    if not subscribers:
        return []
    about_gates = [
        _notice(atlas, trace.type, _public(trace.payload))
        for trace in traces
        for atlas in subscribers
        if trace.payload.get("atlas_id") == atlas.atlas_id and trace.type in atlas.steward.notify_on
    ]
    return [*about_gates, *(notice for call in ran for notice in _of_call(governing, subscribers, call))]


def _public(payload: dict[str, Any]) -> dict[str, Any]:
    """Without what agents and tools wrote: a wrong answer is repeated in why it was refused, an error may hold anything."""
    data = {name: value for name, value in payload.items() if name not in _KEPT_BACK}
    if isinstance(fired_by := data.get("trigger_data"), dict):
        data["trigger_data"] = {name: value for name, value in fired_by.items() if name not in _WRITTEN}
    if "reason" in data and data["reason"] not in _PLAIN_REASONS:
        data["reason"] = ON_THE_TRAIL
    return data


def _of_call(governing: CompiledAtlases, subscribers: Sequence[Atlas], call: RanCall) -> Iterator[dict[str, Any]]:
    risk = governing.risk_of(call.action, call.risk)
    facts = {"action_id": call.action, "call_id": call.call_id, "risk_tier": risk.value}
    policies = governing.of_action(call.action).policies
    keys = [key for key, policy in policies if policy.type is AtlasPolicyType.REQUIRES_APPROVAL]
    for atlas in subscribers:
        # A policy's key is its atlas, a slash and its id.
        own = [key.removeprefix(prefix) for key in keys if key.startswith(prefix := f"{atlas.atlas_id}/")]
        if own and OVERRIDE in atlas.steward.notify_on:
            yield _notice(atlas, OVERRIDE, {**facts, "policy_ids": own})
        if RISKS.index(risk) >= RISKS.index(Risk.HIGH) and HIGH_RISK in atlas.steward.notify_on:
            yield _notice(atlas, HIGH_RISK, facts)


def _notice(atlas: Atlas, trigger: str, data: dict[str, Any]) -> dict[str, Any]:
    about = {"atlas_id": atlas.atlas_id, "version": atlas.version, "steward": atlas.steward.id}
    return {"url": atlas.steward.webhook, **about, "trigger": str(trigger), "data": data}


def minutes_of(atlases: CompiledAtlases, calls: int = 1) -> dict[str, Any]:
    """For the write that sends so many calls: `more.gates.minutes`. Empty where no steward limits calls per minute.
    Over a limit the whole write is refused with `atlas_rate_limited`, whose hint says when to try again."""
    return {
        atlas.atlas_id: {"limit": atlas.steward.requests_per_minute, "calls": calls}
        for atlas in atlases.atlases
        if atlas.steward.requests_per_minute is not None
    }
