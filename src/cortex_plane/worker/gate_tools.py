"""The tools by which an agent speaks to gates. They are offered in governed sessions alone, and nothing is sent by them."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from cortex_plane.agents.model.tools import Risk
from cortex_plane.gates.model.gates import ANSWER, REQUEST_CONTEXT
from cortex_plane.worker.calls import Toolbox
from cortex_plane.worker.tools.tool import Tool


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
