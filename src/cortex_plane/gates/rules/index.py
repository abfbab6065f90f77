"""The index over the gates of atlases, keywords included: its cost does not grow with the number of gates."""

from __future__ import annotations

import contextlib
import itertools
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Generic, NamedTuple, TypeVar

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
    MatchMode,
    Mode,
    TriggerType,
)
from cortex_plane.kernel.errors import InvalidInput, extra
from cortex_plane.kernel.globs import GlobIndex
from cortex_plane.kernel.schemas import Unusable, compiled
from cortex_plane.kernel.text import normal

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


MAX_EXPRESSIONS = 200
"""Regular expressions of one atlas."""
MAX_MEMORY = 256 * 1024
"""Bytes that one may take; whatever needs more is refused when it is published."""
MAX_PROGRAM = 2_000
"""Instructions of all regular expressions of one atlas, and of those of one checkpoint's questions."""
EFFORT = 12_000_000
"""Instructions times characters: what searching one text with all expressions of a session costs at most. One of them takes
about 8 ns where an expression is as unkind as can be, so a text holds up everybody else for 0.1 s at most."""
SEARCHED = 20_000
"""Characters of a text that regular expressions read at most: of a longer one its beginning and its end, half of it each."""
READINGS = 2
"""As it is, and as people read it."""

PLACE = 130
"""Bytes that a word of a gate takes beside the word."""

_Place = tuple[int, int]
"""A gate, and which of its words it is."""
_Kind = tuple[bool, bool]
"""Whether its case counts, and whether it is a phrase."""


class Expressions(NamedTuple):
    """Of one atlas: each pattern once, with the gates that it is of."""

    found: dict[tuple[str, bool], tuple[Any, list[int]]]

    @property
    def program(self) -> int:
        return sum(pattern.programsize for pattern, _ in self.found.values())


class KeywordIndex:
    """The keyword gates of some atlases."""

    def __init__(self, gates: Iterable[Gate]) -> None:
        self._gates: list[Gate] = []
        self._needed: list[int] = []
        self._expressions: dict[str, Expressions] = {}
        """By atlas."""
        self._places = 0
        words: dict[_Kind, dict[str, list[_Place]]] = {}
        for gate in gates:
            self._add(gate, words)
        self._words = {
            kind: Words({word: tuple(places) for word, places in each.items()}, whole=kind[1])
            for kind, each in words.items()
        }

    def _add(self, gate: Gate, words: dict[_Kind, dict[str, list[_Place]]]) -> None:
        number, trigger = len(self._gates), gate.trigger
        self._gates.append(gate)
        if trigger.match_mode is MatchMode.REGEX:
            self._needed.append(1)
            self._add_expressions(number, gate)
            return
        plain = dict.fromkeys(
            each for word in trigger.patterns if (each := normal(word, case_sensitive=trigger.case_sensitive))
        )
        self._needed.append(len(plain) if trigger.match_mode is MatchMode.ALL else 1)
        of_kind = words.setdefault((trigger.case_sensitive, trigger.match_mode is MatchMode.PHRASE), {})
        for position, word in enumerate(plain):
            of_kind.setdefault(word, []).append((number, position))
        self._places += len(plain)

    def _add_expressions(self, number: int, gate: Gate) -> None:
        case = gate.trigger.case_sensitive
        known = self._expressions.setdefault(gate.atlas_id, Expressions({})).found
        for pattern in dict.fromkeys(gate.trigger.patterns):
            if (pattern, case) not in known:
                known[pattern, case] = expression(pattern, case_sensitive=case), []
            known[pattern, case][1].append(number)

    @property
    def read(self) -> dict[str, int]:
        """By atlas: characters of a text that its expressions read. What there is time for is shared out evenly between atlases,
        so that one with large expressions reads less itself, and takes little from the others."""
        share = EFFORT // (READINGS * max(1, len(self._expressions)))
        return {id: min(SEARCHED, share // each.program) for id, each in self._expressions.items()}

    @property
    def room(self) -> int:
        """Bytes of memory that it takes, about: an expression may take as much as it is given."""
        expressions = sum(len(each.found) for each in self._expressions.values())
        words = sum(each.room for each in self._words.values())
        return words + PLACE * (self._places + len(self._gates)) + MAX_MEMORY * expressions

    def find(self, text: str) -> dict[int, tuple[Gate, tuple[str, ...]]]:
        """The gates that the text fires, with what was found of each."""
        seen: dict[int, dict[int, str]] = {}
        plain = {case: Text(normal(text, case_sensitive=case)) for case in {case for case, _ in self._words}}
        for (case, _), words in self._words.items():
            for word, places in words.within(plain[case]):
                for number, position in places:
                    seen.setdefault(number, {})[position] = word
        if self._expressions:
            self._search(text, seen)
        return {
            number: (self._gates[number], tuple(found.values()))
            for number, found in sorted(seen.items())
            if len(found) >= self._needed[number]
        }

    def _search(self, text: str, seen: dict[int, dict[int, str]]) -> None:
        plain = normal(writable(text), case_sensitive=True)
        for id, most in self.read.items():
            # Before and after it is made plain a text need not be cut at the same place: each reading is cut by itself.
            parts = dict.fromkeys([*map(writable, _read(text, most)), *_read(plain, most)])
            for pattern, numbers in self._expressions[id].found.values():
                if any(pattern.search(part) for part in parts):
                    for number in numbers:
                        seen.setdefault(number, {}).setdefault(0, pattern.pattern)


def _read(text: str, most: int) -> list[str]:
    if len(text) <= most:
        return [text]
    half = most // 2
    return [text[:half], text[-half:]]


def writable(text: str) -> str:
    """Without half characters, which no expression can read."""
    return text if text.isascii() else text.encode(errors="replace").decode()


_NOT_READ = "Look-around and back-references are not read: they may take for ever. Write it without them."
_TOO_LARGE = "Repeat less, or name fewer characters: [a-z] takes a hundredth of what \\pL does."


@lru_cache(maxsize=128)
def expression(pattern: str, *, case_sensitive: bool = True) -> Any:
    """A regular expression of somebody else: it takes time in proportion to the text, and no more room than there is."""
    with extra("server"):
        import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.log_errors = False
    options.case_sensitive = case_sensitive
    options.max_mem = MAX_MEMORY
    # Groups are never asked for, and to remember them takes five times as long.
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        said = error.args[0].decode(errors="replace") if isinstance(error.args[0], bytes) else str(error)
        raise InvalidInput(
            f"`{pattern[:100]}` is not a regular expression that can be used: {said}.",
            code="invalid_pattern",
            hint=_TOO_LARGE if "too large" in said else _NOT_READ,
        ) from None


T = TypeVar("T")
FEW = 16
"""So many words are looked for one by one: that is faster than an index."""
BEGINNING = 4
"""Bytes by which one of many words is found."""
PIECE = 65_536
"""Bytes of a text that are looked at together, so that a long one takes no more room."""
WORD, FEW_WORD = 280, 200
"""Bytes that a word takes beside its letters."""
ROOT = 0
"""The empty word, with which every text begins."""


class Text:
    """A text to look for words in, with what is made of it once for all of them."""

    __slots__ = ("_pieces", "data", "plain")

    def __init__(self, plain: str) -> None:
        self.plain, self.data = plain, _bytes(plain)
        self._pieces: dict[int, set[bytes]] = {}

    def beginning(self, cut: int, wanted: AbstractSet[bytes]) -> Iterator[int]:
        """The places where one of these stands; all of them are of one length."""
        for start in range(0, len(self.data), PIECE):
            part = self.data[start : start + PIECE + cut - 1]
            there = wanted & self._cut(part, cut)
            if len(there) <= FEW:
                for each in sorted(there):
                    yield from (start + at for at in _each(part, each))
            else:
                ends = range(len(part) - cut + 1)
                yield from (start + at for at in ends if part[at : at + cut] in there)

    def _cut(self, part: bytes, cut: int) -> set[bytes]:
        known = self._pieces.get(cut)
        if known is None:
            known = {part[at : at + cut] for at in range(len(part) - cut + 1)}
            if len(part) == len(self.data):
                self._pieces[cut] = known
        return known


def _each(data: bytes, wanted: bytes) -> Iterator[int]:
    at = data.find(wanted)
    while at >= 0:
        yield at
        at = data.find(wanted, at + 1)


class Words(Generic[T]):
    """Words, each with what it stands for. ``whole``: found only where no letter and no digit stands beside them."""

    __slots__ = (
        "_beginnings", "_few", "_jump", "_longest", "_parent", "_short", "_shorter", "_values", "_whole", "_words",
    )  # fmt: skip

    def __init__(self, words: Mapping[str, T], *, whole: bool = False) -> None:
        self._whole = whole
        self._few: Mapping[str, T] = words if len(words) <= FEW and not whole else {}
        ordered = [] if self._few else sorted((_bytes(word), word) for word in words)
        self._words: list[bytes] = [b"", *(each for each, _ in ordered)]
        self._values: list[T] = [words[word] for _, word in ordered]
        self._longest = max(map(len, self._words))
        self._beginnings = {each[:BEGINNING] for each in self._words if len(each) >= BEGINNING}
        self._short: dict[int, dict[bytes, int]] = {}
        """By their lengths: those that are no longer than a beginning would be."""
        for number, word in enumerate(self._words):
            if 0 < len(word) < BEGINNING:
                self._short.setdefault(len(word), {})[word] = number
        self._link()

    def _link(self) -> None:
        """Each word with the longest other one that it begins with, and with one far before that."""
        words = self._words
        self._parent, self._jump = array("i", [ROOT]), array("i", [ROOT])
        self._shorter = array("i", [ROOT]) if self._whole else self._parent
        depth, before = array("i", [0]), [ROOT]
        for number in range(1, len(words)):
            word = words[number]
            while not word.startswith(words[before[-1]]):
                before.pop()
            parent = before[-1]
            before.append(number)
            depth.append(depth[parent] + 1)
            far = self._jump[parent]
            # Two jumps of one length make a longer one: so the way to any of them takes few steps.
            even = depth[parent] - depth[far] == depth[far] - depth[self._jump[far]]
            self._parent.append(parent)
            self._jump.append(self._jump[far] if even else parent)
            if self._whole:
                ends = not _sign(word, len(words[parent])).isalnum()
                # What follows a shorter word is the same in this word and in its parent.
                self._shorter.append(parent if ends else self._shorter[parent])

    def __bool__(self) -> bool:
        return bool(self._few or self._values)

    @property
    def room(self) -> int:
        """Bytes of memory that it takes, about, without its values."""
        few = sum(FEW_WORD + 4 * len(word) for word in self._few)
        return few + WORD * len(self._values) + sum(map(len, self._words))

    def within(self, text: Text) -> Iterator[tuple[str, T]]:
        """Each word once."""
        for word, value in self._few.items():
            if word in text.plain:
                yield word, value
        if self._values:
            for number in self._search(text):
                yield _text(self._words[number]), self._values[number - 1]

    def _search(self, text: Text) -> Iterator[int]:
        # One after the end, so that a word may stand there.
        letters = f"{_letters(text.plain)}0" if self._whole else ""
        seen = {ROOT}
        for at, number in self._places(text):
            if self._whole:
                if at and letters[at - 1] == "1":
                    continue
                if letters[at + len(self._words[number])] == "1":
                    number = self._shorter[number]
            while number not in seen:
                seen.add(number)
                yield number
                number = self._shorter[number]

    def _places(self, text: Text) -> Iterator[tuple[int, int]]:
        """Where words stand, and the longest that does; of the short ones each by itself."""
        for cut, words in self._short.items():
            for at in text.beginning(cut, words.keys()):
                yield at, words[text.data[at : at + cut]]
        if self._beginnings:
            for at in text.beginning(BEGINNING, self._beginnings):
                yield at, self._at(text.data, at)

    def _at(self, data: bytes, at: int) -> int:
        """The longest word that stands at a place. Whatever stands there is a beginning of the last word before it."""
        words, jump, parent = self._words, self._jump, self._parent
        number = bisect_right(words, data[at : at + self._longest]) - 1
        while not data.startswith(words[number], at):
            far = jump[number]
            number = parent[number] if data.startswith(words[far], at) else far
        return number


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _text(data: bytes) -> str:
    return data.decode(errors="surrogatepass")


def _sign(word: bytes, at: int) -> str:
    return word[at : at + 4].decode(errors="replace")[0]


def _letters(text: str) -> str:
    """For each byte of a text 1 where it is part of a letter or a digit, and 0 elsewhere."""
    return text.translate({ord(each): "01"[each.isalnum()] * len(_bytes(each)) for each in set(text)})
