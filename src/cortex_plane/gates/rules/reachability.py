"""Finds the actions of an atlas that no sequence of messages, answers, approvals and calls lets run.

The search only adds: it passes every gate that can fire, opens what those gates unlock, and lets every action run that is then
allowed, until nothing changes. What a gate locks or denies counts where nobody can avoid it: at the start of a session, and
before the action itself. So an action that can run is never named.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sized

from cortex_plane.gates.model.atlases import Atlas, AtlasPolicyType, Gate, Mode, TriggerType
from cortex_plane.gates.rules.index import CompiledAtlases, OfAction
from cortex_plane.kernel.fields import Risk
from cortex_plane.kernel.globs import STAR, GlobIndex, glob

_AT_START = (TriggerType.SESSION_START, TriggerType.INTERACTIVE)
_AFTER_CALLS = (TriggerType.COUNT_INTERVAL, TriggerType.ERROR_OCCURRED)
_FOR_CALLS = (
    TriggerType.ACTION_PRE,
    TriggerType.RISK_THRESHOLD,
    TriggerType.CAPABILITY_ACCESS,
    TriggerType.ACTION_POST,
)
_ALLOWING = (AtlasPolicyType.ALLOW, AtlasPolicyType.REQUIRES_APPROVAL)


MAX_WORK = 200_000
"""Gates, capabilities and policies of actions that are looked at: about two seconds, and far more than an atlas that people wrote
needs."""


def unreachable_actions(atlas: Atlas) -> dict[str, str] | None:
    """Of the actions, and patterns of actions, that the atlas allows somewhere: those that never run, and why. None: it is too
    large to be searched."""
    try:
        search = _Search(atlas)
        search.run()
    except _TooLarge:
        return None
    names = dict.fromkeys(_allowed_names(atlas))
    return {name: reason for name in names if (reason := search.obstacle(name)) is not None}


def _allowed_names(atlas: Atlas) -> Iterator[str]:
    for capability in atlas.capabilities:
        yield from capability.actions
    for policy in atlas.policies:
        if policy.type in _ALLOWING:
            yield from policy.actions
    for gate in atlas.gates:
        yield from gate.allow_actions


class _TooLarge(Exception):
    pass


class _Search:
    def __init__(self, atlas: Atlas) -> None:
        self._work = 0
        self._rules: dict[str, OfAction] = {}
        self._atlases = CompiledAtlases([atlas])
        self._gates = [gate for gate in atlas.gates if gate.mode is not Mode.OBSERVATIONAL]
        # What people pass takes effect once the call that they approved runs.
        self._at_start = [gate for gate in self._gates if gate.trigger.type in _AT_START and not gate.asks_people]
        self._denials = GlobIndex((pattern, gate) for gate in self._at_start for pattern in gate.deny_actions)
        self._allowing = GlobIndex((pattern, gate.key) for gate in self._gates for pattern in gate.allow_actions)
        self._unlockers: dict[str, set[str]] = {key: set() for key in self._atlases.capabilities}
        for gate in self._gates:
            for key in _keys(gate, gate.unlock_capabilities):
                self._unlockers.setdefault(key, set()).add(gate.key)
        shut = {key for gate in self._at_start for key in _keys(gate, gate.lock_capabilities)}
        self._open = {key for key in self._atlases.capabilities if self._atlases.begins_open(key) and key not in shut}
        self._always_open: set[str] = set()
        """Nobody meets the gates that guard these."""
        self._passed: set[str] = set()
        self._people: dict[str, Gate] = {}
        """Gates of the session that a person passes by approving its next call."""
        self._approached: set[str] = set()
        """Actions that get as far as the gates before them."""
        self._runnable: set[str] = set()
        patterns = (
            pattern for gate in atlas.gates for pattern in gate.trigger.patterns if gate.trigger.type in _FOR_CALLS
        )
        actions = (action.action_id for action in atlas.actions)
        self._queue = list(dict.fromkeys([*_allowed_names(atlas), *actions, *patterns]))
        self._waiting: dict[str, list[str]] = {}
        """By the key of a capability or a gate: actions that may run once it is open or passed."""
        for name in self._queue:
            rules = self._rules[name] = self._atlases.of_action(name)
            capabilities = rules.capabilities
            unlockers = {gate for key in capabilities for gate in self._unlockers.get(key, ())}
            self._count(rules.before, capabilities, rules.policies, unlockers)
            for key in {*capabilities, *unlockers, *self._allowing.find(name)}:
                self._waiting.setdefault(key, []).append(name)
        self._after = [
            (pattern, gate)
            for gate in self._atlases.of(TriggerType.ACTION_POST)
            for pattern in gate.trigger.patterns
            if STAR in pattern
        ]

    def run(self) -> None:
        for gate in self._at_start:
            self._pass_gate(gate)
        lockable = {key for gate in self._gates for key in _keys(gate, gate.lock_capabilities)}
        self._always_open = self._open - lockable
        for gate in self._gates:
            if gate.trigger.type not in (*_FOR_CALLS, *_AFTER_CALLS, TriggerType.SESSION_END):
                self._fire(gate)
        while self._queue:
            self._look_at(self._queue.pop())

    def _count(self, *parts: Sized) -> None:
        self._work += 1 + sum(map(len, parts))
        if self._work > MAX_WORK:
            raise _TooLarge

    def obstacle(self, name: str) -> str | None:
        """Why it never runs; None where it does, or where a policy denies it: then that is what was written."""
        if name in self._runnable or self._is_denied_by_policy(name):
            return None
        if (denial := self._denial(name)) is not None:
            return f"the checkpoint `{denial.gate_id}` denies it before it could"
        capabilities = [key.rpartition("/")[2] for key in self._rules[name].capabilities]
        if not capabilities:
            return "nothing that can be reached allows it"
        names = ", ".join(f"`{id}`" for id in capabilities[:3])
        return f"nothing that can be reached unlocks {names}{' and others' if len(capabilities) > 3 else ''}"

    def _fire(self, gate: Gate) -> None:
        """A gate of the session."""
        if gate.asks_people and not self._runnable and gate.key not in self._people:
            self._people[gate.key] = gate
            self._queue += self._waiting.get(gate.key, ())
        elif not gate.asks_people or self._runnable:
            self._pass_gate(gate)

    def _pass_gate(self, gate: Gate) -> None:
        if gate.key in self._passed or gate.mode is Mode.OBSERVATIONAL:
            return
        self._passed.add(gate.key)
        capabilities = gate.trigger.capability_ids if gate.trigger.type is TriggerType.CAPABILITY_ACCESS else ()
        opens = [*_keys(gate, gate.unlock_capabilities)]
        opens += [key for key in _keys(gate, capabilities) if not self._waiting_guards(key)]
        for key in opens:
            if key not in self._open:
                self._open.add(key)
                self._queue += self._waiting.get(key, ())
        self._queue += self._waiting.get(gate.key, ())

    def _waiting_guards(self, capability: str) -> list[Gate]:
        return [gate for gate in self._atlases.guards(capability) if gate.key not in self._passed]

    def _look_at(self, name: str) -> None:
        if name in self._runnable or self._is_denied_by_policy(name):
            return
        rules, atlases = self._rules[name], self._atlases
        met = [*rules.before, *atlases.risky(Risk.CRITICAL)]
        shut = [key for key in rules.capabilities if key not in self._always_open]
        guards = [gate for key in shut for gate in atlases.gates_of_capability(key)]
        self._count(met, guards, rules.policies)
        if name not in self._approached:
            keys = {*self._people, *(gate.key for gate in met)}
            if rules.capabilities and not any(
                key in self._open or atlases.guards(key) or not keys.isdisjoint(self._unlockers.get(key, ()))
                for key in rules.capabilities
            ):
                return
            self._approached.add(name)
            for gate in (*(gate for gate in met if gate.asks), *(gate for gate in guards if not gate.asks_people)):
                self._pass_gate(gate)
        # What these grant counts for the call, and is given when it runs.
        with_call = [*self._people.values(), *(gate for gate in met if not gate.asks)]
        is_open = any(self._opens(name, key, with_call) for key in rules.capabilities)
        allowed = is_open or any(policy.type in _ALLOWING for _, policy in rules.policies)
        keys = {*self._passed, *(gate.key for gate in with_call)}
        allowed = allowed or not keys.isdisjoint(self._allowing.find(name))
        if allowed and (is_open or not rules.capabilities) and self._denial(name) is None:
            self._run_action(name, [*with_call, *guards])

    def _opens(self, name: str, capability: str, with_call: Iterable[Gate]) -> bool:
        """Whether it is open to the action, or is opened by what is passed with its call."""
        if capability not in self._always_open and (waiting := self._waiting_guards(capability)):
            return all(gate.asks_people for gate in waiting)
        if any(gate.key in self._unlockers.get(capability, ()) for gate in with_call):
            return True
        return capability in self._open and not self._closes(name, capability)

    def _run_action(self, name: str, with_call: Iterable[Gate]) -> None:
        is_first = not self._runnable
        self._runnable.add(name)
        for gate in (*with_call, *(gate for gate in self._gates if is_first and gate.trigger.type in _AFTER_CALLS)):
            self._pass_gate(gate)
        for gate in self._atlases.after(name):
            self._fire(gate)
        if STAR in name:
            own = glob(name)
            for pattern, gate in self._after:
                # A pattern within this one is looked at by itself.
                if gate.key not in self._passed and not own.matches(pattern) and glob(pattern).overlaps(own):
                    self._fire(gate)

    def _is_denied_by_policy(self, name: str) -> bool:
        return any(policy.type is AtlasPolicyType.DENY for _, policy in self._rules[name].policies)

    def _denial(self, name: str) -> Gate | None:
        """A gate that nobody who calls it gets around, and that forbids it."""
        for gate in self._denials.find(name):
            return gate
        for gate in self._forbidding(name):
            if any(glob(each).matches(name) for each in gate.deny_actions):
                return gate
        return None

    def _forbidding(self, name: str) -> Iterator[Gate]:
        """Gates before the action whose effects hold before it runs."""
        before = self._rules[name].before
        return (gate for gate in before if gate.mode is not Mode.OBSERVATIONAL and not gate.asks_people)

    def _closes(self, name: str, capability: str) -> bool:
        """Whether a gate before the action locks its capability with each call, and none that it meets opens it again. One
        that asks locks it when it is answered, and another may unlock it before the call is made again."""
        forbidding = [gate for gate in self._forbidding(name) if not gate.asks]
        locks = any(capability in _keys(gate, gate.lock_capabilities) for gate in forbidding)
        met = (*self._rules[name].before, *self._atlases.risky(Risk.CRITICAL))
        return locks and not self._atlases.guards(capability) and not any(gate.unlocks(capability) for gate in met)


def _keys(gate: Gate, capabilities: Iterable[str]) -> list[str]:
    return [f"{gate.atlas_id}/{capability}" for capability in capabilities]
