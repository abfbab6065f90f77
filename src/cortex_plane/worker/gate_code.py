"""Code around gates: the triggers and validators that an app registers, and the tools by which an agent answers gates.

A trigger or validator runs within a time limit, and its failure opens nothing: a blocking gate counts as fired, what another
gate forbids is forbidden, and an answer counts as not checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import structlog
from pydantic import Field

from cortex_plane.gates.model.atlases import Gate, Mode, TriggerType
from cortex_plane.gates.model.gates import ANSWER, MAX_REQUESTED, REQUEST_CONTEXT, Trace, skipped
from cortex_plane.gates.rules.answers import custom_checks
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.kernel.fields import Risk
from cortex_plane.worker.calls import Toolbox, storable
from cortex_plane.worker.limits import CallTimeout, ticks, within
from cortex_plane.worker.tools.tool import Tool, run_function

log = structlog.get_logger()

SECONDS = 2.0
"""For one trigger or validator."""
MAX_FAULT = 500


@dataclass(slots=True)
class TriggerResults:
    firing: set[str] = field(default_factory=set)
    """Keys of gates."""
    elapsed_ms: float = 0.0
    traces: list[Trace] = field(default_factory=list)
    failures: list[tuple[Gate, str]] = field(default_factory=list)
    """Blocking gates, which count as fired, with the reason why their trigger failed."""
    unknown: set[str] = field(default_factory=set)
    """Keys of other gates whose trigger failed: what they forbid is forbidden."""


async def run_triggers(
    atlases: CompiledAtlases, triggers: Mapping[str, Callable[..., Any]], inputs: Sequence[str]
) -> TriggerResults:
    results, start = TriggerResults(), ticks()
    most = atlases.budget.max_checkpoint_time_ms
    gates = atlases.of(TriggerType.CUSTOM) if inputs else []
    # Gates that block or restrict are always evaluated; the others only within the time budget.
    for gate in sorted(gates, key=lambda gate: not gate.is_due):
        spent = 1000 * (ticks() - start)
        if not gate.is_due and most is not None and spent > most:
            results.traces.append(skipped(gate, "max_checkpoint_time_ms"))
            continue
        fires, trouble = await _fires(gate, triggers, inputs)
        if fires:
            results.firing.add(gate.key)
        elif trouble is not None and gate.mode is Mode.BLOCKING:
            results.firing.add(gate.key)
            results.failures.append((gate, trouble))
        elif trouble is not None:
            results.unknown.add(gate.key)
            results.traces.append(skipped(gate, trouble))
    results.elapsed_ms = 1000 * (ticks() - start)
    return results


async def _fires(
    gate: Gate, triggers: Mapping[str, Callable[..., Any]], inputs: Sequence[str]
) -> tuple[bool, str | None]:
    """Whether it fires, or why that is unknown."""
    name = gate.trigger.trigger_id or ""
    function = triggers.get(name)
    if function is None:
        return False, f"the trigger `{name}` is not loaded here"
    for text in inputs:
        result, trouble = await _call_app(function, f"the trigger `{name}`", text, dict(gate.trigger.params))
        if trouble is not None:
            return False, trouble
        if not isinstance(result, bool):
            return False, f"the trigger `{name}` returned a {type(result).__name__}, not True or False"
        if result:
            return True, None
    return False, None


async def run_validators(
    gate: Gate, validators: Mapping[str, Callable[..., Any]], answers: Mapping[str, Any]
) -> dict[str, str | None]:
    """By question: the fault of its answer, None for a valid one. Answers that could not be checked are left out."""
    faults: dict[str, str | None] = {}
    for question, value in custom_checks(gate, answers):
        id, name = question.question_id, question.validation.custom_validator or ""
        function = validators.get(name)
        if function is None:
            continue
        result, trouble = await _call_app(function, f"the validator `{name}`", value)
        if trouble is not None:
            continue
        if result is None:
            faults[id] = None
        elif isinstance(result, str):
            faults[id] = storable(result)[:MAX_FAULT] or f"the validator `{name}` refused it"
    return faults


async def _call_app(function: Callable[..., Any], what: str, *arguments: Any) -> tuple[Any, str | None]:
    """Its result, or why it has none."""
    try:
        return await within(SECONDS, run_function(functools.partial(function, *arguments), {}), set()), None
    except CallTimeout:
        trouble = f"{what} did not answer within {SECONDS:g} s"
    except Exception as error:
        trouble = storable(f"{what} raised {type(error).__name__}: {error}")[:MAX_FAULT]
    log.warning("gate code failed", what=what, trouble=trouble)
    return None, trouble


async def _answer(gate: str, answers: dict[str, Any], call: str | None = None) -> dict[str, Any]:  # noqa: ARG001
    """Answer the questions of a gate that waits: `gate` is its id, `answers` has one value for each question id, and `call`
    names the call that it stops, where the question names one. An answer counts from your next response on."""
    raise AssertionError("the worker settles answers to gates itself")


async def _request_context(name: str | Annotated[list[str], Field(max_length=MAX_REQUESTED)]) -> dict[str, Any]:  # noqa: ARG001
    """Ask for what was written down for you under this name, or under each of several names."""
    raise AssertionError("the worker settles requests to gates itself")


TOOLS = (
    Tool(_answer, name=ANSWER, read_only=True, risk=Risk.LOW),
    Tool(_request_context, name=REQUEST_CONTEXT, read_only=True, risk=Risk.LOW),
)


@functools.cache
def _digests() -> dict[str, str]:
    return {tool.name: tool.version("plane").digest for tool in TOOLS}


def with_gate_tools(toolbox: Toolbox) -> Toolbox:
    return replace(
        toolbox,
        tools={**toolbox.tools, **{tool.provider_name: tool for tool in TOOLS}},
        specs=[*toolbox.specs, *(tool.spec for tool in TOOLS)],
        digests={**toolbox.digests, **_digests()},
    )
