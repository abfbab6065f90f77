"""What the model is told: the session's messages and the job's own steps, put together in the order they were said."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from cortex_plane.agents.model.models import (
    AssistantTurn,
    CallRequest,
    CallResult,
    Response,
    StopReason,
    ToolTurn,
    Turn,
    UserTurn,
)
from cortex_plane.jobs.model.effects import ToolCall
from cortex_plane.kernel.canonical import canonical
from cortex_plane.sessions.rules.windows import Entry, Thread

SILENCE = "(Nobody said anything in between.)"


@dataclass(frozen=True, kw_only=True, slots=True)
class SessionMessage:
    """A message of the session."""

    seq: int
    role: str
    text: str
    job_id: UUID | None


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
    found, left = list[str](), list[Any]([payload])
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            left += [part for name, each in reversed([*value.items()]) for part in (each, name)]
        elif isinstance(value, list):
            left += reversed(value)
        elif value is not None:
            found.append(str(value))
    return found


def heard(said: Sequence[SessionMessage], job_id: UUID) -> list[Entry]:
    """Messages as turns. What the job itself answered stands in its steps already."""
    return [
        Entry(_turn(message), seq=message.seq)
        for message in said
        if message.role in ("user", "assistant") and message.job_id != job_id
    ]


def _turn(message: SessionMessage) -> Turn:
    return AssistantTurn(text=message.text) if message.role == "assistant" else UserTurn(message.text)


def merge_assistant_turns(turns: Sequence[Turn]) -> list[Turn]:
    """Providers want no model that speaks twice in a row, as one does whose text was not taken as an answer."""
    told: list[Turn] = []
    for turn in turns:
        if (
            isinstance(turn, AssistantTurn)
            and told
            and isinstance(told[-1], AssistantTurn)
            and not told[-1].calls
        ):
            told.append(UserTurn(SILENCE))
        told.append(turn)
    return told


def recorded_form(response: Response) -> dict[str, Any]:
    """What is as usual is not written: the scripted model that speaks to its end is the usual one."""
    cut = {"truncated": True} if response.stop_reason is StopReason.MAX_TOKENS else {}
    more: dict[str, Any] = {} if response.model is None else {"model": response.model}
    if response.stop_reason not in (StopReason.END, StopReason.TOOL_CALLS):
        more["stop_reason"] = response.stop_reason.value
    return {
        "text": response.text,
        "calls": [
            {"id": call.id, "name": call.name, "arguments": call.arguments, **cut} for call in response.calls
        ],
        **more,
    }


def requests_of(response: Mapping[str, Any]) -> tuple[CallRequest, ...]:
    return tuple(CallRequest(**call) for call in response["calls"])


def as_sent(requests: Sequence[CallRequest], rows: Mapping[int, ToolCall]) -> tuple[CallRequest, ...]:
    """The calls as they were really made: where a person edited one, the model sees the edited call as its own."""
    return tuple(
        replace(request, arguments=rows[index].arguments) if index in rows and rows[index].edited else request
        for index, request in enumerate(requests)
    )


def result_of(request: CallRequest, call: ToolCall) -> CallResult:
    if call.error is not None:
        return CallResult(
            call_id=request.id,
            name=request.name,
            content=canonical({"error": call.error}).decode(),
            is_error=True,
        )
    return CallResult(call_id=request.id, name=request.name, content=canonical(call.result).decode())


def rebuilt(
    job_id: UUID,
    said: Sequence[SessionMessage],
    steps: Sequence[StepRow],
    calls: Mapping[int, Sequence[ToolCall]],
    finished_below: int,
    asked: Turn | None = None,
) -> Thread:
    """The turns before the step ``finished_below``, plus the messages that were read for it and not yet answered.

    What a memory covers is not among the rows. ``asked`` is what a task begins with, or the newest user message that
    is covered.
    """
    entries: list[Entry] = []
    position = 0
    for step in steps:
        if step.step_index >= finished_below:
            break
        entries += heard([m for m in said if position < m.seq <= step.message_seq], job_id)
        position = step.message_seq
        done = {call.position: call for call in calls.get(step.step_index, ())}
        requests = as_sent(requests_of(step.response), done)
        turns: list[Turn] = [AssistantTurn(text=step.response["text"], calls=requests)]
        if requests:
            results = tuple(result_of(request, done[index]) for index, request in enumerate(requests))
            turns.append(ToolTurn(results))
        entries += [Entry(turn, step=step.step_index, seq=step.message_seq) for turn in turns]
    entries += heard([m for m in said if position < m.seq], job_id)
    return Thread(entries, None if asked is None else Entry(asked))
