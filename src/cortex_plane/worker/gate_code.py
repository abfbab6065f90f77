"""Code around gates: the triggers and validators that an app registers, and the tools by which an agent answers gates.

A trigger or validator runs within a time limit, and its failure opens nothing: a blocking gate counts as fired, what another
gate forbids is forbidden, and an answer counts as not checked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.model.atlases import Gate, Mode, TriggerType
from cortex_plane.gates.model.gates import ANSWER, REQUEST_CONTEXT, Trace, skipped
from cortex_plane.gates.rules.answers import custom_checks
from cortex_plane.gates.rules.index import CompiledAtlases
from cortex_plane.worker.calls import Toolbox, storable
from cortex_plane.worker.effects import TimedOut, within
from cortex_plane.worker.limits import ticks
from cortex_plane.worker.tools.tool import Tool, run_function

log = structlog.get_logger()

SECONDS = 2.0
"""For one trigger or validator."""
MAX_FAULT = 500


@dataclass(slots=True)
class Asked:
    """What triggers said of what came in."""

    fired: set[str] = field(default_factory=set)
    """Keys of gates."""
    elapsed_ms: float = 0.0
    traces: list[Trace] = field(default_factory=list)
    failed: list[tuple[Gate, str]] = field(default_factory=list)
    """Gates that block, and count as fired because nobody knows."""
    unknown: set[str] = field(default_factory=set)
    """Keys of the others of which nobody knows: what they forbid is forbidden."""


async def triggered(
    atlases: CompiledAtlases, triggers: Mapping[str, Callable[..., Any]], inputs: Sequence[str]
) -> Asked:
    asked, began = Asked(), ticks()
    most = atlases.budget.max_checkpoint_time_ms
    gates = atlases.of(TriggerType.CUSTOM) if inputs else []
    # Those that block or restrict are always asked; the others only while there is time for them.
    for gate in sorted(gates, key=lambda each: not each.is_due):
        spent = 1000 * (ticks() - began)
        if not gate.is_due and most is not None and spent > most:
            asked.traces.append(skipped(gate, "max_checkpoint_time_ms"))
            continue
        fires, trouble = await _fires(gate, triggers, inputs)
        if fires:
            asked.fired.add(gate.key)
        elif trouble is not None and gate.mode is Mode.BLOCKING:
            asked.fired.add(gate.key)
            asked.failed.append((gate, trouble))
        elif trouble is not None:
            asked.unknown.add(gate.key)
            asked.traces.append(skipped(gate, trouble))
    asked.elapsed_ms = 1000 * (ticks() - began)
    return asked


async def _fires(
    gate: Gate, triggers: Mapping[str, Callable[..., Any]], inputs: Sequence[str]
) -> tuple[bool, str | None]:
    """Whether it fires; and why nobody knows, where that is so."""
    name = gate.trigger.trigger_id or ""
    function = triggers.get(name)
    if function is None:
        return False, f"the trigger `{name}` is not loaded here"
    for text in inputs:
        said, trouble = await _asked(function, f"the trigger `{name}`", text, dict(gate.trigger.params))
        if trouble is not None:
            return False, trouble
        if not isinstance(said, bool):
            return False, f"the trigger `{name}` returned a {type(said).__name__}, not True or False"
        if said:
            return True, None
    return False, None


async def validated(
    gate: Gate, validators: Mapping[str, Callable[..., Any]], answers: Mapping[str, Any]
) -> dict[str, str | None]:
    """By question: what is wrong with its answer, None where nothing is. What could not be asked is left out."""
    found: dict[str, str | None] = {}
    for question, name, value in custom_checks(gate, answers):
        function = validators.get(name)
        if function is None:
            continue
        said, trouble = await _asked(function, f"the validator `{name}`", value)
        if trouble is not None:
            continue
        if said is None:
            found[question] = None
        elif isinstance(said, str):
            found[question] = storable(said)[:MAX_FAULT] or f"the validator `{name}` refused it"
    return found


async def _asked(function: Callable[..., Any], what: str, *arguments: Any) -> tuple[Any, str | None]:
    """What it says, or why it does not."""
    try:
        return await within(SECONDS, run_function(functools.partial(function, *arguments), {})), None
    except TimedOut:
        trouble = f"{what} did not answer within {SECONDS:g} s"
    except Exception as error:
        trouble = storable(f"{what} raised {type(error).__name__}: {error}")[:MAX_FAULT]
    log.warning("gate code failed", what=what, trouble=trouble)
    return None, trouble


async def _answer(gate: str, answers: dict[str, Any], call: str | None = None) -> dict[str, Any]:  # noqa: ARG001
    """Answer the questions of a gate that waits: `gate` is its id, `answers` has one value for each question id, and `call`
    names the call that it stops, where the question names one. An answer counts from your next response on."""
    raise AssertionError("gates are answered where they are kept")


async def _request_context(name: str) -> dict[str, Any]:  # noqa: ARG001
    """Ask for what was written down for you under this name."""
    raise AssertionError("gates are asked where they are kept")


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
