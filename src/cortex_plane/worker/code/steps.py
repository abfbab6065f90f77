"""Steps that are settled like calls: the function of a step as a tool, and the call that it makes.

Such a step is written before and after, in the ledger of calls, under the name `plane.step`. It is code of the agent: policies and
gates do not look at it.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import orjson
import structlog

from cortex_plane.agents.model.completions import CallRequest
from cortex_plane.agents.model.tools import DidNotHappen, Happened, OnUncertain
from cortex_plane.jobs.model.effects import STEP
from cortex_plane.kernel.canonical import canonical
from cortex_plane.kernel.errors import ContextMisused
from cortex_plane.kernel.fields import Risk
from cortex_plane.worker.calls import Call, CallKind
from cortex_plane.worker.code.operations import PlannedStep
from cortex_plane.worker.tools.tool import (
    Tool,
    ToolContext,
    check_probe_answer,
    context_parameters,
    encode_result,
    run_function,
)

log = structlog.get_logger()

_DIGEST = hashlib.sha256(STEP.encode()).hexdigest()
"""What a step does is the agent's own, so it has no version."""
NEXT_RELEASE = "With the next release it counts as on_uncertain='ask_human'."


class StepTool(Tool):
    """A parameter of the function that is annotated with `ToolContext` gets the context, as that of a tool does."""

    def __init__(self, step: PlannedStep, timeout_seconds: float) -> None:
        self.name = STEP
        self.description = ""
        self.read_only = False
        self.risk = Risk.MEDIUM
        self.timeout_seconds = timeout_seconds
        self.on_uncertain = step.on_uncertain or OnUncertain.ASK_HUMAN
        self.is_async = inspect.iscoroutinefunction(step.function)
        self._step = step

    @property
    def label(self) -> str:
        return self._step.name

    async def call(self, values: Mapping[str, Any], context: ToolContext) -> Any:  # noqa: ARG002
        return await self._run(self._step.function, context)

    async def ask_probe(self, values: Mapping[str, Any], context: ToolContext) -> Happened | DidNotHappen | None:  # noqa: ARG002
        if self._step.probe is None:
            # An earlier version of the code had one: then a person knows best.
            return None
        return check_probe_answer(await self._run(self._step.probe, context), self.label)

    async def _run(self, function: Callable[..., Any], context: ToolContext) -> Any:
        keywords = dict.fromkeys(context_parameters(function), context)
        bound = functools.partial(function, *self._step.arguments)
        return await run_function(bound, keywords)


def step_call(step: PlannedStep, position: int, id: UUID, timeout_seconds: float) -> Call:
    for function in filter(None, (step.function, step.probe)):
        _require_fit(step, function)
    values = {"step": step.name, "arguments": orjson.loads(encode_result(list(step.arguments)))}
    arguments = canonical(values)
    return Call(
        step=position,
        position=0,
        request=CallRequest(id=f"call-{position}", name=STEP, arguments=values),
        id=id,
        kind=CallKind.EFFECT,
        tool=StepTool(step, timeout_seconds),
        name=STEP,
        digest=_DIGEST,
        values=values,
        arguments=arguments,
        input_hash=hashlib.sha256(arguments).hexdigest(),
    )


def _require_fit(step: PlannedStep, function: Callable[..., Any]) -> None:
    """A function that does not take the arguments is refused before anything is written: its call would be in doubt."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # a builtin that does not say what it takes
    try:
        signature.bind(*step.arguments, **dict.fromkeys(context_parameters(function)))
    except TypeError as error:
        raise ContextMisused(
            f"The step `{step.name}` cannot call `{getattr(function, '__name__', 'its function')}`: {error}.",
            hint="Pass its arguments after it, in their order; a parameter of type ToolContext comes behind them.",
        ) from None


@functools.lru_cache(maxsize=10_000)
def warn_undeclared(agent: str, step: str) -> None:
    """Once for each step of a process."""
    log.warning(
        "step declares nothing", agent=agent, step=step,
        hint=f"It runs again where its worker dies. {NEXT_RELEASE} Declare repeatable=True, or on_uncertain.",
    )  # fmt: skip
