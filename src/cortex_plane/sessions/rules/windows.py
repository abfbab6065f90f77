"""The window: what one call of the model is told of all that was said.

    system prompt │ memory │ the newest user turn, where it lies further back │ the newest turns

The turns are kept in the order they were said. What leaves the window at its old end goes into the memory first, so
every turn is in the window or covered by the memory. A response and the results of its calls stay together: a unit is
such a pair, or one turn that stands alone, and only whole units leave.

Nothing is done until the window is filled to its high mark; then it is emptied to its low one, so that compacting is
rare and what a provider has cached stays the same for long.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload

import orjson

from cortex_plane.agents.model import tokens
from cortex_plane.agents.model.models import AssistantTurn, CallRequest, ToolSpec, ToolTurn, Turn, UserTurn
from cortex_plane.sessions.model.memories import Memory, allowance, told

CONTEXT_TOKENS = 100_000
CONTEXT_TURNS = 200
ANSWER_TOKENS = 4096
"""Kept free for the answer where the agent does not say."""
LEAST_TOKENS = 500
"""However long the prompt is, so much is left for what was said."""
HIGH, LOW = 0.8, 0.5


@dataclass(frozen=True, slots=True)
class Entry:
    """A turn, and the rows that it comes from: its step, or the number of its message."""

    turn: Turn
    step: int | None = None
    seq: int = 0
    """Of the message; of a step's turns, how far the messages were read for it."""
    tokens: int = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", tokens.of_turn(self.turn))


@dataclass(frozen=True, slots=True)
class Covered:
    """How far a memory goes: steps below ``step``, messages up to ``seq``."""

    step: int = 0
    seq: int = 0

    def after(self, dropped: Iterable[Entry]) -> Covered:
        step, seq = self.step, self.seq
        for entry in dropped:
            step = max(step, -1 if entry.step is None else entry.step + 1)
            seq = max(seq, entry.seq)
        return Covered(step, seq)


class Thread(Sequence[Turn]):
    """The turns that no memory covers, with the newest user turn in front where that is covered."""

    def __init__(self, entries: Iterable[Entry] = (), asked: Entry | None = None) -> None:
        self.entries = list(entries)
        self._asked = asked

    @property
    def asked(self) -> Entry | None:
        """The newest user turn, where it is not among the entries any more."""
        return None if any(isinstance(entry.turn, UserTurn) for entry in self.entries) else self._asked

    def append(self, turn: Turn, *, step: int | None = None, seq: int = 0) -> None:
        self.entries.append(Entry(turn, step, seq))

    def extend(self, entries: Iterable[Entry]) -> None:
        self.entries += entries

    def drop(self, count: int) -> list[Entry]:
        """The oldest entries leave: a memory covers them now."""
        dropped, self.entries = self.entries[:count], self.entries[count:]
        self._asked = _newest_user(dropped) or self._asked
        return dropped

    @property
    def turns(self) -> list[Turn]:
        asked = self.asked
        return [entry.turn for entry in ([] if asked is None else [asked]) + self.entries]

    def __len__(self) -> int:
        return len(self.entries) + (self.asked is not None)

    def __iter__(self) -> Iterator[Turn]:
        return iter(self.turns)

    @overload
    def __getitem__(self, index: int) -> Turn: ...
    @overload
    def __getitem__(self, index: slice) -> list[Turn]: ...
    def __getitem__(self, index: int | slice) -> Turn | list[Turn]:
        return self.turns[index]


@dataclass(frozen=True, slots=True)
class Budget:
    """What the window may hold beside the system prompt, the tools and the answer."""

    tokens: int
    turns: int = CONTEXT_TURNS

    @classmethod
    def of(cls, config: Mapping[str, Any], prompt: str | None, tools: Sequence[ToolSpec]) -> Budget:
        """From an agent's `model_config`."""
        context = config.get("context_tokens") or CONTEXT_TOKENS
        answer = min(config.get("max_tokens") or ANSWER_TOKENS, context // 2)
        left = context - answer - tokens.of_text(prompt or "") - tokens.of_tools(tools)
        return cls(max(LEAST_TOKENS, left), config.get("context_turns") or CONTEXT_TURNS)


def filled(thread: Thread, memory: Memory, budget: Budget) -> int:
    """How many tokens the window has before anything is shortened.

    Of a newest user turn that lies further back only its own part is counted: what it fills beyond that is room that
    nobody else needs, and no reason to forget anything.
    """
    asked = thread.asked
    ahead = tokens.of_turn(memory.turn()) if memory else 0
    ahead += 0 if asked is None else min(asked.tokens, _for_asked(budget))
    return ahead + sum(entry.tokens for entry in thread.entries)


def due(thread: Thread, memory: Memory, budget: Budget) -> int:
    """How many of the oldest entries must leave now; 0 while there is room, or nothing more that may leave."""
    entries = thread.entries
    if filled(thread, memory, budget) <= HIGH * budget.tokens and len(entries) <= budget.turns:
        return 0
    newest = _newest_user(entries) or thread.asked
    left = LOW * budget.tokens - allowance(budget.tokens)
    left -= min(newest.tokens, _for_asked(budget)) if newest else 0
    room = budget.turns // 2
    cut = end = len(entries)
    for start in reversed([0, *_unit_ends(entries)[:-1]]):
        left -= sum(entry.tokens for entry in entries[start:end])
        room -= end - start
        # The last unit stays: what the model has not heard yet is not forgotten before it did.
        if end < len(entries) and (left < 0 or room < 0):
            break
        cut = end = start
    return cut


def assembled(thread: Thread, memory: Memory, budget: Budget) -> list[Turn]:
    """What the model is told. What is too large even alone is shortened, visibly: better than never to be answered."""
    head = [memory.turn()] if memory else []
    left = budget.tokens - sum(map(tokens.of_turn, head))
    turns = [entry.turn for entry in thread.entries]
    asked = thread.asked
    if asked is not None:
        spare = left - sum(entry.tokens for entry in thread.entries)
        if asked.tokens > spare:
            # In large pieces: what a provider has cached stays the same for some steps.
            spare -= spare % max(1, budget.tokens // 8)
        turns = [*shortened([asked.turn], max(_for_asked(budget), spare)), *turns]
    return [*head, *shortened(turns, left)]


def _for_asked(budget: Budget) -> int:
    """Of a newest user turn that lies far back, so much is told again and again, however full the window is."""
    return budget.tokens // 3


def chunk(entries: Sequence[Entry], limit: int) -> tuple[int, list[Turn]]:
    """How many of the oldest entries one question may hold, in whole units, and their turns as they fit into it."""
    count = used = 0
    for end in _unit_ends(entries):
        # As it is told: quotes and line ends take more room in JSON.
        size = sum(
            tokens.of_text(tokens.arguments_text(told(entry.turn))) + 1 for entry in entries[count:end]
        )
        if count and used + size > limit:
            break
        count, used = end, used + size
        if used > limit:
            break
    turns = [entry.turn for entry in entries[:count]]
    return count, (turns if used <= limit else shortened(turns, limit // 2))


def shortened(turns: Sequence[Turn], allowed: int) -> list[Turn]:
    """The same turns in at most so many tokens: the longest texts lose their middle, and say how much."""
    whole = sum(map(tokens.of_turn, turns))
    if whole <= allowed:
        return list(turns)
    sizes = [tokens.of_text(text) for turn in turns for text in _texts(turn)]
    cap = _cap(sizes, allowed - (whole - sum(sizes)))
    return [_within(turn, cap) for turn in turns]


def clipped(text: str, cap: int) -> str:
    """At most ``cap`` tokens, or the mark alone where that is more."""
    size = tokens.of_text(text)
    if size <= cap:
        return text
    keep = len(text)
    while keep:
        keep = min(keep - 1, keep * max(0, cap - tokens.of_text(_mark(len(text)))) // size)
        head = keep - keep // 3
        short = text[:head] + _mark(len(text) - keep) + text[len(text) - keep // 3 :]
        size = tokens.of_text(short)
        if size <= cap:
            return short
    return _mark(len(text))


def _mark(count: int) -> str:
    return f"[… {count} characters left out …]"


def _newest_user(entries: Sequence[Entry]) -> Entry | None:
    return next((entry for entry in reversed(entries) if isinstance(entry.turn, UserTurn)), None)


def _unit_ends(entries: Sequence[Entry]) -> list[int]:
    starts = [index for index, entry in enumerate(entries) if index and not isinstance(entry.turn, ToolTurn)]
    return [*starts, len(entries)] if entries else []


def _cap(sizes: Sequence[int], allowed: int) -> int:
    """The most that each text may have, so that all of them together have no more than allowed."""
    left = max(0, allowed)
    ordered = sorted(sizes)
    for index, size in enumerate(ordered):
        share = left // (len(ordered) - index)
        if size > share:
            return share
        left -= size
    return max(ordered, default=0)


def _texts(turn: Turn) -> list[str]:
    match turn:
        case UserTurn():
            return [turn.text]
        case AssistantTurn():
            return [turn.text or "", *(tokens.arguments_text(call.arguments) for call in turn.calls)]
        case ToolTurn():
            return [result.content for result in turn.results]


def _within(turn: Turn, cap: int) -> Turn:
    match turn:
        case UserTurn():
            return UserTurn(clipped(turn.text, cap))
        case AssistantTurn():
            text = None if turn.text is None else clipped(turn.text, cap)
            return AssistantTurn(text=text, calls=tuple(_call_within(call, cap) for call in turn.calls))
        case ToolTurn():
            results = turn.results
            return ToolTurn(tuple(replace(each, content=_json_within(each.content, cap)) for each in results))


def _call_within(call: CallRequest, cap: int) -> CallRequest:
    if isinstance(call.arguments, str):
        return replace(call, arguments=clipped(call.arguments, cap))
    text = tokens.arguments_text(call.arguments)
    short = _json_within(text, cap)
    return call if short == text else replace(call, arguments=orjson.loads(short))


def _json_within(text: str, cap: int) -> str:
    """Still JSON, and an object, as providers want it."""
    room, short = cap, text
    while tokens.of_text(short) > cap:
        room = room * 3 // 4
        short = orjson.dumps({"shortened": clipped(text, room)}).decode()
        if not room:
            break
    return short
