"""A session as a model sees it: turns, and the window that fits its context."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, overload
from uuid import UUID

import orjson

from cortex_plane.agents.model import completions
from cortex_plane.agents.model.completions import AssistantTurn, CallRequest, StopReason, ToolTurn, Turn, UserTurn
from cortex_plane.jobs.model.effects import CallStatus, ToolCall
from cortex_plane.kernel.canonical import canonical
from cortex_plane.sessions.model.sessions import Memory, memory_allowance, turn_record

SILENCE = "(Nobody said anything in between.)"
OPERATOR = (
    "[From {by}, an operator of the plane that runs you: not the person whom you talk with. It was said while you were"
    " stopped. Take it into account from here on.]"
)
"""What stands before words of an operator."""
APPROVER = "[From {by}, who decided about a call of yours: not a part of the conversation.]"
"""What stands before the reason of a yes."""
OF_DECISION = '{"approval_id":'
"""How the reason of a yes begins, as it is stored."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionMessage:
    """A message of the session."""

    seq: int
    role: str
    text: str
    job_id: UUID | None
    by: str | None = None
    """Who said it, where it was an operator."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepRow:
    """A recorded response, with the position up to which the messages had been read when it was asked for."""

    step_index: int
    message_seq: int
    response: dict[str, Any]


def opening(payload: Mapping[str, Any]) -> UserTurn:
    """What a task begins with: its payload's text, or all of it."""
    text = payload.get("text")
    return UserTurn(text if isinstance(text, str) and text else canonical(dict(payload)).decode())


def inputs_of(payload: Mapping[str, Any], *, code: bool) -> tuple[str, ...]:
    """What a task begins with, as gates look at it: what the model reads; where there is no text, or ``code`` reads whatever it
    likes of it, also each name and value of its payload as it is, on a line of its own."""
    text = opening(payload).text
    if text == payload.get("text") and not code:
        return (text,)
    return tuple(dict.fromkeys((text, "\n".join(_values(payload)))))


def _values(payload: Mapping[str, Any]) -> list[str]:
    """In their order, without recursion: how deep a payload goes is up to whoever sends it."""
    texts, stack = list[str](), list[Any]([payload])
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            stack += [part for name, each in reversed([*value.items()]) for part in (each, name)]
        elif isinstance(value, list):
            stack += reversed(value)
        elif value is not None:
            texts.append(str(value))
    return texts


def heard(messages: Sequence[SessionMessage], job_id: UUID) -> list[Entry]:
    """Messages as turns. What the job itself answered stands in its steps already; words of operators are for one job."""
    return [
        Entry(_turn_of(message), seq=message.seq)
        for message in messages
        if (
            message.job_id == job_id
            if message.role == "system"
            else message.role != "tool" and message.job_id != job_id
        )
    ]


def _turn_of(message: SessionMessage) -> Turn:
    if message.role == "system":
        who = APPROVER if message.text.startswith(OF_DECISION) else OPERATOR
        return UserTurn(f"{who.format(by=message.by or 'an operator')}\n{message.text}", by_operator=True)
    return AssistantTurn(text=message.text) if message.role == "assistant" else UserTurn(message.text)


def merge_assistant_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Providers want no model that speaks twice in a row, as one does whose text was not taken as an answer."""
    result: list[Turn] = []
    for turn in turns:
        before = result[-1] if result else None
        if isinstance(turn, AssistantTurn) and isinstance(before, AssistantTurn) and not before.calls:
            result.append(UserTurn(SILENCE))
        result.append(turn)
    return result


def recorded_form(response: completions.Response) -> dict[str, Any]:
    """What is as usual is not written: the scripted model that speaks to its end is the usual one."""
    cut = {"truncated": True} if response.stop_reason is StopReason.MAX_TOKENS else {}
    more: dict[str, Any] = {} if response.model is None else {"model": response.model}
    if response.stop_reason not in (StopReason.END, StopReason.TOOL_CALLS):
        more["stop_reason"] = response.stop_reason.value
    return {
        "text": response.text,
        "calls": [{"id": call.id, "name": call.name, "arguments": call.arguments, **cut} for call in response.calls],
        **more,
    }


def requests_of(response: Mapping[str, Any], rows: Mapping[int, ToolCall]) -> tuple[CallRequest, ...]:
    """The calls as they were really made. Arguments that are in the row of a call alone come from there, and those that a person
    edited: the model sees the edited call as its own."""
    return tuple(
        CallRequest(**{**call, "arguments": rows[position].arguments})
        if "arguments" not in call or (position in rows and rows[position].edited)
        else CallRequest(**call)
        for position, call in enumerate(response["calls"])
    )


def result_of(request: CallRequest, call: ToolCall) -> completions.CallResult:
    is_error = call.error is not None and call.status is not CallStatus.ANSWERED
    content = canonical({"error": call.error} if is_error else call.result).decode()
    return completions.CallResult(call_id=request.id, name=request.name, content=content, is_error=is_error)


def rebuilt(
    job_id: UUID,
    messages: Sequence[SessionMessage],
    steps: Sequence[StepRow],
    calls: Mapping[int, Sequence[ToolCall]],
    finished_below: int,
    first_turn: Turn | None = None,
) -> Thread:
    """The turns before the step ``finished_below``, plus the messages that were read for it and not yet answered. What
    a memory covers is not among the rows. ``first_turn`` is what a task begins with, or the newest user message that is
    covered."""
    entries: list[Entry] = []
    position = 0
    for step in steps:
        if step.step_index >= finished_below:
            break
        entries += heard([m for m in messages if position < m.seq <= step.message_seq], job_id)
        position = step.message_seq
        calls_by_position = {call.position: call for call in calls.get(step.step_index, ())}
        requests = requests_of(step.response, calls_by_position)
        turns: list[Turn] = [AssistantTurn(text=step.response["text"], calls=requests)]
        if requests:
            results = tuple(result_of(request, calls_by_position[index]) for index, request in enumerate(requests))
            turns.append(ToolTurn(results))
        entries += [Entry(turn, step=step.step_index, seq=step.message_seq) for turn in turns]
    entries += heard([m for m in messages if position < m.seq], job_id)
    return Thread(entries, None if first_turn is None else Entry(first_turn))


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
        object.__setattr__(self, "tokens", completions.of_turn(self.turn))


@dataclass(frozen=True, slots=True)
class Covered:
    """How far a memory goes: steps below ``step``, messages up to ``seq``."""

    step: int = 0
    seq: int = 0

    def after(self, entries: Iterable[Entry]) -> Covered:
        step, seq = self.step, self.seq
        for entry in entries:
            step = max(step, -1 if entry.step is None else entry.step + 1)
            seq = max(seq, entry.seq)
        return Covered(step, seq)


class Thread(Sequence[Turn]):
    """The turns that no memory covers, with the newest user turn in front where that is covered."""

    def __init__(self, entries: Iterable[Entry] = (), newest_user: Entry | None = None) -> None:
        self.entries: list[Entry] = []
        self.entry_turns: list[Turn] = []
        """The turns of the entries."""
        self.tokens = 0
        """Of all entries."""
        self.has_monologue = False
        """The model spoke twice in a row: see `merge_assistant_turns`."""
        self._user_turns = 0
        self._asked = newest_user
        self.extend(entries)

    @property
    def asked(self) -> Entry | None:
        """The newest user turn, where it is not among the entries any more."""
        return None if self._user_turns else self._asked

    def append(self, turn: Turn, *, step: int | None = None, seq: int = 0) -> None:
        self._add(Entry(turn, step, seq))

    def extend(self, entries: Iterable[Entry]) -> None:
        for entry in entries:
            self._add(entry)

    def _add(self, entry: Entry) -> None:
        before = self.entry_turns[-1] if self.entry_turns else None
        if isinstance(before, AssistantTurn) and isinstance(entry.turn, AssistantTurn):
            self.has_monologue = True
        self.entries.append(entry)
        self.entry_turns.append(entry.turn)
        self.tokens += entry.tokens
        self._user_turns += _is_users(entry.turn)

    def drop(self, count: int) -> list[Entry]:
        """The oldest entries leave: a memory covers them now."""
        oldest, self.entries, self.entry_turns = self.entries[:count], self.entries[count:], self.entry_turns[count:]
        for entry in oldest:
            self.tokens -= entry.tokens
            self._user_turns -= _is_users(entry.turn)
        self._asked = _newest_user(oldest) or self._asked
        return oldest

    @property
    def turns(self) -> list[Turn]:
        newest = self.asked
        return self.entry_turns if newest is None else [newest.turn, *self.entry_turns]

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
    def of(cls, config: Mapping[str, Any], prompt: str | None, tools: Sequence[completions.ToolSpec]) -> Budget:
        """From an agent's `model_config`."""
        context = config.get("context_tokens") or CONTEXT_TOKENS
        answer = min(config.get("max_tokens") or ANSWER_TOKENS, context // 2)
        tokens = context - answer - completions.of_text(prompt or "") - completions.of_tools(tools)
        return cls(max(LEAST_TOKENS, tokens), config.get("context_turns") or CONTEXT_TURNS)


def filled(thread: Thread, memory: Memory, budget: Budget) -> int:
    """How many tokens the window has before anything is shortened. Of a newest user turn that lies further back only
    its own part is counted: what it fills beyond that is room that nobody else needs, and no reason to forget
    anything."""
    newest = thread.asked
    ahead = memory.tokens if memory.summary or memory.facts else 0
    ahead += 0 if newest is None else min(newest.tokens, _for_asked(budget))
    return ahead + thread.tokens


def due(thread: Thread, memory: Memory, budget: Budget) -> int:
    """How many of the oldest entries must leave now; 0 while there is room, or nothing more that may leave."""
    entries = thread.entries
    if filled(thread, memory, budget) <= HIGH * budget.tokens and len(entries) <= budget.turns:
        return 0
    newest = _newest_user(entries) or thread.asked
    spare = LOW * budget.tokens - memory_allowance(budget.tokens)
    spare -= min(newest.tokens, _for_asked(budget)) if newest else 0
    room = budget.turns // 2
    cut = end = len(entries)
    for start in reversed([0, *_unit_ends(entries)[:-1]]):
        spare -= sum(entry.tokens for entry in entries[start:end])
        room -= end - start
        # The last unit stays: what the model has not heard yet is not forgotten before it did.
        if end < len(entries) and (spare < 0 or room < 0):
            break
        cut = end = start
    return cut


def assembled(thread: Thread, memory: Memory, budget: Budget) -> list[Turn]:
    """What the model is told. What is too large even alone is shortened, visibly: better than never to be answered."""
    head, room = [], budget.tokens
    if memory.summary or memory.facts:
        head, room = [memory.turn()], room - memory.tokens
    turns, size = thread.entry_turns.copy(), thread.tokens
    newest = thread.asked
    if newest is not None:
        spare = room - size
        if newest.tokens > spare:
            # In large pieces: what a provider has cached stays the same for some steps.
            spare -= spare % max(1, budget.tokens // 8)
        limit = max(_for_asked(budget), spare)
        first, tokens = newest.turn, newest.tokens
        if tokens > limit:
            (first,) = shortened([first], limit)
            tokens = completions.of_turn(first)
        turns.insert(0, first)
        size += tokens
    return [*head, *(turns if size <= room else shortened(turns, room))]


def _for_asked(budget: Budget) -> int:
    """Of a newest user turn that lies far back, so much is told again and again, however full the window is."""
    return budget.tokens // 3


def chunk(entries: Sequence[Entry], limit: int) -> tuple[int, list[Turn]]:
    """How many of the oldest entries one question may hold, in whole units, and their turns as they fit into it."""
    count = total = 0
    for end in _unit_ends(entries):
        # As it is told: quotes and line ends take more room in JSON.
        size = sum(
            completions.of_text(completions.arguments_text(turn_record(entry.turn))) + 1 for entry in entries[count:end]
        )
        if count and total + size > limit:
            break
        count, total = end, total + size
        if total > limit:
            break
    turns = [entry.turn for entry in entries[:count]]
    return count, (turns if total <= limit else shortened(turns, limit // 2))


def shortened(turns: Sequence[Turn], limit: int) -> list[Turn]:
    """The same turns in at most so many tokens: the longest texts lose their middle, and say how much."""
    whole = sum(map(completions.of_turn, turns))
    if whole <= limit:
        return list(turns)
    sizes = [completions.of_text(text) for turn in turns for text in _texts(turn)]
    cap = _cap(sizes, limit - (whole - sum(sizes)))
    return [_within(turn, cap) for turn in turns]


def clipped(text: str, cap: int) -> str:
    """At most ``cap`` tokens, or the mark alone where that is more."""
    size = completions.of_text(text)
    if size <= cap:
        return text
    keep = len(text)
    while keep:
        keep = min(keep - 1, keep * max(0, cap - completions.of_text(_mark(len(text)))) // size)
        short = text[: keep - keep // 3] + _mark(len(text) - keep) + text[len(text) - keep // 3 :]
        size = completions.of_text(short)
        if size <= cap:
            return short
    return _mark(len(text))


def _mark(count: int) -> str:
    return f"[… {count} characters left out …]"


def _newest_user(entries: Sequence[Entry]) -> Entry | None:
    return next((entry for entry in reversed(entries) if _is_users(entry.turn)), None)


def _is_users(turn: Turn) -> bool:
    """Words of an operator ask for nothing: the model needs what the user asked beside them."""
    return isinstance(turn, UserTurn) and not turn.by_operator


def _unit_ends(entries: Sequence[Entry]) -> list[int]:
    starts = [index for index, entry in enumerate(entries) if index and not isinstance(entry.turn, ToolTurn)]
    return [*starts, len(entries)] if entries else []


def _cap(sizes: Sequence[int], limit: int) -> int:
    """The most that each text may have, so that all of them together have no more than allowed."""
    rest = max(0, limit)
    ascending = sorted(sizes)
    for index, size in enumerate(ascending):
        share = rest // (len(ascending) - index)
        if size > share:
            return share
        rest -= size
    return max(ascending, default=0)


def _texts(turn: Turn) -> list[str]:
    match turn:
        case UserTurn():
            return [turn.text]
        case AssistantTurn():
            return [turn.text or "", *(completions.arguments_text(call.arguments) for call in turn.calls)]
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
            shortened_results = (replace(result, content=_json_within(result.content, cap)) for result in turn.results)
            return ToolTurn(tuple(shortened_results))


def _call_within(call: CallRequest, cap: int) -> CallRequest:
    if isinstance(call.arguments, str):
        return replace(call, arguments=clipped(call.arguments, cap))
    text = completions.arguments_text(call.arguments)
    short = _json_within(text, cap)
    return call if short == text else replace(call, arguments=orjson.loads(short))


def _json_within(text: str, cap: int) -> str:
    """Still JSON, and an object, as providers want it."""
    room, short = cap, text
    while completions.of_text(short) > cap:
        room = room * 3 // 4
        short = orjson.dumps({"shortened": clipped(text, room)}).decode()
        if not room:
            break
    return short
