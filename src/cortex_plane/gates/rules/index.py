"""An index over the gates of atlases, keywords included: a lookup does not get slower with more gates. Also what one atlas says about an
action or a capability."""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, TypeVar

from cortex_plane.gates.model import atlases as atlas_model
from cortex_plane.gates.model.atlases import (
    Atlas,
    AtlasPolicy,
    AtlasPolicyType,
    AtlasRules,
    Capability,
    Gate,
    GateBudget,
    GateRelation,
    GateRule,
    MatchMode,
    Mode,
    TriggerType,
)
from cortex_plane.kernel.errors import InvalidInput, extra
from cortex_plane.kernel.fields import RISKS, Risk, highest_risk
from cortex_plane.kernel.globs import GlobIndex, glob
from cortex_plane.kernel.schemas import Unusable, compiled
from cortex_plane.kernel.shares import LruCache
from cortex_plane.kernel.text import normal

K = TypeVar("K")
V = TypeVar("V")
_LOOKED_AT = tuple(atlas_model.AtlasPolicyType)
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
    declared: tuple[atlas_model.Action, ...]


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

    def __init__(self, atlases: Sequence[atlas_model.Atlas]) -> None:
        self.atlases = tuple(atlases)
        self.gates: dict[str, Gate] = {gate.key: gate for atlas in atlases for gate in atlas.gates}
        self.contexts: dict[str, atlas_model.ContextBlock] = {
            f"{atlas.atlas_id}/{context.context_id}": context for atlas in atlases for context in atlas.contexts
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
        self._actions = _grouped((action.action_id, action) for atlas in atlases for action in atlas.actions)
        self._policies = GlobIndex[tuple[str, AtlasPolicy]](
            (pattern, (f"{atlas.atlas_id}/{policy.policy_id}", policy))
            for atlas in atlases
            for policy in atlas.policies
            for pattern in policy.actions
        )

    def _sort_gates(self) -> None:
        self._by_type = _grouped((gate.trigger.type, gate) for gate in sorted(self.gates.values(), key=rank))
        self._plain = _grouped((gate.gate_id, gate) for gate in self.gates.values())
        starting = [*self.of(TriggerType.SESSION_START), *self.of(TriggerType.INTERACTIVE)]
        first = _grouped((gate.atlas_id, gate) for gate in starting)
        self.once: dict[str, list[Gate]] = {atlas.atlas_id: first.get(atlas.atlas_id, []) for atlas in self.atlases}
        """By atlas: what fires when a session meets it."""
        custom = self.of(TriggerType.CUSTOM)
        self.blocking_custom = tuple(gate for gate in custom if gate.mode is Mode.BLOCKING)
        """They stop callers that cannot run their triggers."""
        self.restricting_custom = tuple(gate for gate in custom if gate.restricts and gate.mode is not Mode.BLOCKING)
        """What they forbid is forbidden to callers that cannot run their triggers."""
        self.timed = self._rounds(TriggerType.TIME_INTERVAL)
        self.counting = self._rounds(TriggerType.COUNT_INTERVAL)
        self._before, self._after, self._requested = (
            GlobIndex((pattern, gate) for gate in self.of(kind) for pattern in gate.trigger.patterns or ("*",))
            for kind in (TriggerType.ACTION_PRE, TriggerType.ACTION_POST, TriggerType.EXPLICIT_REQUEST)
        )
        risks = [(gate, gate.trigger.min_tier) for gate in self.of(TriggerType.RISK_THRESHOLD)]
        self._risky: dict[Risk, list[Gate]] = {
            tier: [gate for gate, least in risks if least in RISKS[: place + 1]] for place, tier in enumerate(RISKS)
        }

    def _sort_guards(self) -> None:
        self._of_capability = _grouped(
            (f"{gate.atlas_id}/{capability}", gate)
            for gate in self.of(TriggerType.CAPABILITY_ACCESS)
            for capability in gate.trigger.capability_ids
        )
        pairs = ((key, gate) for key, gates in self._of_capability.items() for gate in gates)
        self._guards = _grouped((key, gate) for key, gate in pairs if gate.mode is not Mode.OBSERVATIONAL)
        unlockable_keys = {
            f"{gate.atlas_id}/{capability}"
            for gate in self.gates.values()
            if gate.mode is not Mode.OBSERVATIONAL
            for capability in gate.unlock_capabilities
        }
        watched_only = self._of_capability.keys() - self._guards.keys()
        self._shut_at_first = frozenset(
            key
            for key, capability in self.capabilities.items()
            if key in unlockable_keys or key in self._guards or (capability.locked and key not in watched_only)
        )
        self._ending = _grouped(
            (f"{gate.atlas_id}/{gate.guidance.expires_after}", gate.key)
            for gate in self.gates.values()
            if gate.guidance is not None and gate.guidance.expires_after not in (None, gate.gate_id)
        )

    def _rounds(self, kind: TriggerType) -> tuple[Round, ...]:
        rounds = _grouped(
            ((gate.atlas_id, gate.trigger.seconds or gate.trigger.actions or 1), gate) for gate in self.of(kind)
        )
        return tuple(
            Round(name=f"{atlas}@{every}", atlas_id=atlas, every=every, gates=tuple(gates))
            for (atlas, every), gates in rounds.items()
        )

    def of(self, kind: TriggerType) -> list[Gate]:
        """In the order of their priorities."""
        return self._by_type.get(kind, [])

    @cached_property
    def keywords(self) -> KeywordIndex:
        return KeywordIndex(self.of(TriggerType.KEYWORD))

    def prepare(self) -> None:
        """Make what is made only when it is asked for: a caller that compiles in a thread does it there."""
        _ = self.keywords, self.known_actions
        schemas = [action.parameters_schema for atlas in self.atlases for action in atlas.actions]
        schemas += [question.schema for gate in self.gates.values() for question in gate.questions]
        for schema in [schema for schema in schemas if schema is not None][:MAX_PREPARED]:
            with contextlib.suppress(Unusable):
                compiled(dict(schema))

    def of_action(self, action: str) -> OfAction:
        rules = self._looked_up.get(action)
        if rules is None:
            policies = {key: (key, policy) for key, policy in self._policies.find(action)}
            rules = OfAction(
                before=tuple(_once(self._before.find(action))),
                capabilities=tuple(dict.fromkeys(self._capable.find(action))),
                policies=tuple(sorted(policies.values(), key=lambda each: _LOOKED_AT.index(each[1].type))),
                declared=tuple(self._actions.get(action, ())),
            )
            if len(self._looked_up) >= MAX_LOOKED_UP:
                self._looked_up.clear()
            self._looked_up[action] = rules
        return rules

    def after(self, action: str) -> list[Gate]:
        return _once(self._after.find(action))

    def requested(self, what: str) -> list[Gate]:
        return _once(self._requested.find(what))

    def risky(self, tier: Risk) -> list[Gate]:
        return self._risky[tier]

    def gates_of_capability(self, capability: str) -> list[Gate]:
        return self._of_capability.get(capability, [])

    def guards(self, capability: str) -> list[Gate]:
        """The gates that must be passed to open it: an observational gate stops nobody."""
        return self._guards.get(capability, [])

    def begins_open(self, capability: str) -> bool:
        return capability not in self._shut_at_first

    def ends_with(self, key: str) -> Sequence[str]:
        """The gates whose guidance lasts until this one is passed."""
        return self._ending.get(key, ())

    def risk_of(self, action: str, own: Risk) -> Risk:
        actions = self.of_action(action).declared
        return highest_risk(own, *(action.risk_tier for action in actions)) if actions else own

    @cached_property
    def known_actions(self) -> tuple[str, ...]:
        """Every action that an atlas names without a star."""
        rules: list[Capability | AtlasPolicy] = [*self.capabilities.values()]
        rules += [policy for atlas in self.atlases for policy in atlas.policies]
        patterns = [action for rule in rules for action in rule.actions]
        return tuple(dict.fromkeys([*self._actions, *(action for action in patterns if "*" not in action)]))

    def named(self, id: str) -> list[Gate]:
        """By key, or by its plain id."""
        gate = self.gates.get(id)
        return [gate] if gate is not None else self._plain.get(id, [])


def rank(gate: Gate) -> tuple[int, str]:
    return -gate.priority, gate.key


def _once(gates: list[Gate]) -> list[Gate]:
    return list({gate.key: gate for gate in gates}.values())


def _grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    groups: dict[K, list[V]] = {}
    for key, value in pairs:
        groups.setdefault(key, []).append(value)
    return groups


def _tightest(budgets: Sequence[GateBudget]) -> GateBudget:
    def least(name: str) -> Any:
        return min((each for budget in budgets if (each := getattr(budget, name)) is not None), default=None)

    return GateBudget(**{name: least(name) for name in GateBudget.__slots__})


MAX_EXPRESSIONS = 200
"""Regular expressions of one atlas."""
MAX_MEMORY = 256 * 1024
"""Bytes that one may take; whatever needs more is refused when it is published."""
MAX_PROGRAM = 2_000
"""Instructions of all regular expressions of one atlas, and of those of one checkpoint's questions."""
MAX_SEARCHED = 500_000
"""Characters of a text that is read, as it is and as people read it: no message, task or goal is that long."""
QUICK = 500_000
"""Instructions times characters. Searching such a text takes a few milliseconds; a longer one is searched in a thread."""
REMEMBERED = 8
"""Long texts of which is remembered what was found in them."""

MAX_KEYWORD_BYTES = 100_000
"""Of the keywords of one atlas, all together."""
KEYWORD_MEMORY = 32 * 1024 * 1024
"""Bytes that the search for the keywords of one atlas may take."""

_Place = tuple[int, int]
"""A gate, and which of its words it is."""
_Kind = tuple[str, bool, bool]
"""The atlas, whether case counts, and whether it is a phrase."""
_NOT_IN_A_WORD = re.compile(r"[\W_]")
_WORD_START, _WORD_END = "\x01", "\x02"
"""Characters that no normal text has."""


def _mark_words(text: str) -> str:
    """The text with a mark wherever a word could begin or end. A phrase stands in a text as whole words, which means that no
    letter and no digit stands beside it, where its marked form stands in the marked text."""
    return _WORD_START + _NOT_IN_A_WORD.sub(rf"{_WORD_END}\g<0>{_WORD_START}", text) + _WORD_END


class KeywordSet:
    """Keywords of one kind, each with its places; RE2 finds all of them in one pass over a text."""

    def __init__(self, words: Mapping[str, list[_Place]], *, phrases: bool) -> None:
        self._words = list(words.items())
        self._needles = [_bytes(_mark_words(word) if phrases else word) for word in words]
        self._set = _compile_set(self._needles)

    def find(self, text: str) -> Iterator[tuple[str, list[_Place]]]:
        """Each word once."""
        data = _bytes(text)
        numbers = self._set.Match(data) if self._set is not None else None
        if numbers:
            yield from (self._words[number - 1] for number in sorted(numbers) if number)
        else:  # the set had too little memory: an atlas that was published before there was a limit
            yield from (word for needle, word in zip(self._needles, self._words, strict=True) if needle in data)


def _compile_set(needles: Sequence[bytes]) -> Any | None:
    """None where the needles take too much memory. The first entry is always found: where it is not, the search failed."""
    re2, options = _re2(KEYWORD_MEMORY)
    options.literal = True
    options.encoding = re2.Options.Encoding.LATIN1
    words = re2.Set.SearchSet(options)
    try:
        for needle in (b"", *needles):
            words.Add(needle)
        words.Compile()
    except re2.error:
        return None
    return words


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _re2(memory: int) -> tuple[Any, Any]:
    """The module, and options for expressions of others. Imported when an atlas needs it."""
    with extra("server"):
        import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.max_mem = memory
    # Groups are never asked for, and to remember them takes five times as long.
    options.never_capture = True
    return re2, options


WORDS_COST = 50
"""Instructions that stand for everything but expressions."""


class KeywordIndex:
    """The keyword gates of some atlases."""

    def __init__(self, gates: Iterable[Gate]) -> None:
        self._gates = list(gates)
        self._needed: list[int] = []
        self._expressions: dict[tuple[str, bool], tuple[Any, list[int]]] = {}
        """By pattern and whether case counts: the compiled expression, and the gates that have it."""
        self._findings = LruCache[bytes, tuple[dict[int, tuple[Gate, tuple[str, ...]]] | None]](max_size=REMEMBERED)
        words: dict[_Kind, dict[str, list[_Place]]] = {}
        for number, gate in enumerate(self._gates):
            if gate.trigger.match_mode is MatchMode.REGEX:
                self._add_expressions(number, gate)
            else:
                self._add_words(number, gate, words)
        self._sets = {kind: KeywordSet(places, phrases=kind[2]) for kind, places in words.items()}
        self._cases = {case for _, case, _ in self._sets} | ({True} if self._expressions else set())
        self._program: int = sum(pattern.programsize for pattern, _ in self._expressions.values())

    def _add_words(self, number: int, gate: Gate, words: dict[_Kind, dict[str, list[_Place]]]) -> None:
        trigger = gate.trigger
        plain = dict.fromkeys(normal(word, case_sensitive=trigger.case_sensitive) for word in trigger.patterns)
        plain.pop("", None)
        self._needed.append(len(plain) if trigger.match_mode is MatchMode.ALL else 1)
        places = words.setdefault((gate.atlas_id, trigger.case_sensitive, trigger.match_mode is MatchMode.PHRASE), {})
        for position, word in enumerate(plain):
            places.setdefault(word, []).append((number, position))

    def _add_expressions(self, number: int, gate: Gate) -> None:
        self._needed.append(1)
        case = gate.trigger.case_sensitive
        for pattern in dict.fromkeys(gate.trigger.patterns):
            if (pattern, case) not in self._expressions:
                self._expressions[pattern, case] = expression(pattern, case_sensitive=case), []
            self._expressions[pattern, case][1].append(number)

    def is_quick(self, text: str) -> bool:
        """Whether it may be searched where others wait."""
        return len(text) * max(self._program, WORDS_COST) <= QUICK

    def find(self, text: str) -> dict[int, tuple[Gate, tuple[str, ...]]] | None:
        """The gates that the text fires, with what was found of each. None: it cannot be read. A long text that was searched
        before, in a thread, is not searched again."""
        if not self._gates or self.is_quick(text):
            return self._find(text)
        key = hashlib.sha256(text.encode(errors="surrogatepass")).digest()
        finding = self._findings.get(key)
        if finding is None:
            finding = (self._find(text),)
            self._findings.put(key, finding, 1)
        return finding[0]

    def _find(self, text: str) -> dict[int, tuple[Gate, tuple[str, ...]]] | None:
        seen: dict[int, dict[int, str]] = {}
        texts = {case: normal(text, case_sensitive=case) for case in self._cases} if len(text) <= MAX_SEARCHED else {}
        if max(map(len, (text, *texts.values()))) > MAX_SEARCHED:
            return None if self._gates else {}
        marked: dict[bool, str] = {}
        for (_, case, phrases), words in self._sets.items():
            if phrases and case not in marked:
                marked[case] = _mark_words(texts[case])
            for word, places in words.find(marked[case] if phrases else texts[case]):
                for number, position in places:
                    seen.setdefault(number, {})[position] = word
        if self._expressions:
            readings = dict.fromkeys((writable(text), normal(writable(text), case_sensitive=True)))
            for pattern, numbers in self._expressions.values():
                if any(pattern.search(reading) for reading in readings):
                    for number in numbers:
                        seen.setdefault(number, {}).setdefault(0, pattern.pattern)
        return {
            number: (self._gates[number], tuple(words.values()))
            for number, words in sorted(seen.items())
            if len(words) >= self._needed[number]
        }


def writable(text: str) -> str:
    """Without half characters, which no expression can read."""
    return text if text.isascii() else text.encode(errors="replace").decode()


_NOT_READ = "Look-around and back-references are not read: they may take for ever. Write it without them."
_TOO_LARGE = "Repeat less, or name fewer characters: [a-z] takes a hundredth of what \\pL does."


@lru_cache(maxsize=128)
def expression(pattern: str, *, case_sensitive: bool = True) -> Any:
    """A regular expression of somebody else: it takes time in proportion to the text, and no more room than there is."""
    re2, options = _re2(MAX_MEMORY)
    options.case_sensitive = case_sensitive
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise InvalidInput(
            f"`{pattern[:100]}` is not a regular expression that can be used: {reason}.",
            code="invalid_pattern",
            hint=_TOO_LARGE if "too large" in reason else _NOT_READ,
        ) from None


_POLICY_ORDER = tuple(AtlasPolicyType)


def rules_of(atlas: Atlas, action: str | None, capability: str | None) -> AtlasRules:
    """Of exactly one of the two."""
    if (action is None) == (capability is None):
        raise InvalidInput("Ask about an `action` or about a `capability`.", hint="Name exactly one of the two.")
    if capability is not None:
        capabilities = [item for item in atlas.capabilities if item.capability_id == capability]
        if not capabilities:
            names = ", ".join(item.capability_id for item in atlas.capabilities[:20]) or "none"
            raise InvalidInput(
                f"The atlas has no capability `{capability[:100]}`.", field="capability", hint=f"It has {names}."
            )
    else:
        capabilities = [item for item in atlas.capabilities if _matches(item.actions, action)]
    ids = {item.capability_id for item in capabilities}
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
        capabilities=capabilities, policies=sorted(policies, key=lambda policy: _POLICY_ORDER.index(policy.type)),
        declared=next((item for item in atlas.actions if item.action_id == action), None),
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
