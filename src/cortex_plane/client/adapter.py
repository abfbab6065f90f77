"""What the adapters of agent frameworks share: which tools they guard and how, and the words for people and models."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import orjson
from pydantic_core import PydanticSerializationError, to_jsonable_python

from cortex_plane.agents.model.tool_names import ToolNames
from cortex_plane.client.authorization import PATIENCE_SECONDS, PLAIN, Advice, PlaneAnswer, PlaneCalls, ToolOptions
from cortex_plane.client.dialogue import require_person
from cortex_plane.kernel.schemas import Unusable, compiled, faults

if TYPE_CHECKING:
    from cortex_plane.client.client import Client
    from cortex_plane.client.guarding import Answers

USAGE_PATIENCE_SECONDS = 1.0
"""A model's answer is not held back for long where the plane cannot be told what it took."""
MOST_SESSIONS = 10_000
"""That an adapter remembers; the oldest are forgotten first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """The settings of one adapter."""

    plane: Client
    agent: str
    tools: Mapping[str, ToolOptions] = field(default_factory=dict)
    """By the framework's name of the tool; a tool that is not here has plain options."""
    names: ToolNames = field(default_factory=ToolNames)
    answers: Answers | None = None
    patience: float = PATIENCE_SECONDS
    on_behalf_of: str | Callable[[Any], str] | None = None
    """The person for whom a service works, or a function of what the framework knows of them."""

    _calls: dict[tuple[str, str | None], PlaneCalls] = field(default_factory=dict, init=False)

    def calls(self, session: str, source: object = None) -> PlaneCalls:
        """The same for all calls of a session: once somebody has ended it, this adapter opens no other one in its place. From the ``source``
        a function says who the person is."""
        at = session, self._person(source)
        if at not in self._calls:
            while len(self._calls) >= MOST_SESSIONS:
                self._calls.pop(next(iter(self._calls)))
            self._calls[at] = PlaneCalls(
                self.plane, agent=self.agent, session=session, names=self.names, answers=self.answers, patience=self.patience,
                on_behalf_of=at[1],
            )  # fmt: skip
        return self._calls[at]

    def _person(self, source: object) -> str | None:
        return require_person(self.on_behalf_of(source)) if callable(self.on_behalf_of) else self.on_behalf_of

    def usage_calls(self, session: str, source: object = None) -> PlaneCalls:
        patience = min(self.patience, USAGE_PATIENCE_SECONDS)
        return PlaneCalls(
            self.plane,
            agent=self.agent,
            session=session,
            names=self.names,
            patience=patience,
            on_behalf_of=self._person(source),
        )

    def options(self, name: str, parameters: Mapping[str, Any] | None) -> ToolOptions:
        """Those of the tool, with its schema, so that approvers may edit its arguments."""
        options = self.tools.get(name, PLAIN)
        if options.parameters is not None or parameters is None:
            return options
        return dataclasses.replace(options, parameters=parameters)


def key_of(call_id: str, earlier: int) -> str:
    """The key of a call. Some providers begin to count their ids anew with each answer, so an id that has results earlier in this
    conversation gets a number, which grows with them. A resume sees the same ones, and makes the same key."""
    return call_id if earlier == 0 else f"{call_id}#{earlier + 1}"


def describe_wait(answer: PlaneAnswer) -> dict[str, Any]:
    """What the framework shows while the call waits. It is no authority: the plane is asked again after every resume."""
    return {
        "tool": answer.tool, "arguments": answer.arguments, "in_doubt": answer.next is Advice.DOUBT, "reason": answer.reason,
        "approval_id": answer.approval_id, "link": answer.link, "deadline": answer.deadline, "call_id": answer.call_id,
    }  # fmt: skip


def describe_stop(answer: PlaneAnswer) -> str:
    """What the model reads instead of a result."""
    reason = answer.reason or "The plane does not allow it."
    if answer.result is None:
        return reason
    return f"{reason} A person answered: {as_text(answer.result)}"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def as_json(result: Any) -> Any:
    """What a tool returned, as the plane stores it."""
    try:
        return to_jsonable_python(result)
    except PydanticSerializationError:
        return result  # The report says that it could not be kept.


def find_faults(parameters: Mapping[str, Any] | None, arguments: Mapping[str, Any]) -> str | None:
    """For the model, what is wrong with the arguments. Nobody is asked about a call that cannot run."""
    if parameters is None:
        return None
    try:
        texts = faults(compiled(dict(parameters)), dict(arguments))
    except Unusable:
        return None  # The plane says what is wrong with the schema.
    return f"The arguments are not valid. Correct them and call it again: {'; '.join(texts)}" if texts else None
