"""The plane's own tool: a question to people. Approving it does nothing but let the agent know."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from cortex_plane.agents.model.tools import OnUncertain, provider_name
from cortex_plane.worker.calls import Toolbox
from cortex_plane.worker.code.wishes import ASK
from cortex_plane.worker.tools.tool import Tool


async def _ask(action: str, details: dict[str, Any] | None = None) -> dict[str, Any]:  # noqa: ARG001
    """Ask people whether this may happen."""
    return {"approved": True}


ASK_TOOL = Tool(_ask, name=ASK, on_uncertain=OnUncertain.RETRY_WITH_KEY)


@functools.cache
def _digest() -> str:
    return ASK_TOOL.version("plane").digest


def with_ask(toolbox: Toolbox) -> Toolbox:
    """Code may ask; the model is not told of it."""
    return replace(
        toolbox,
        tools={**toolbox.tools, provider_name(ASK): ASK_TOOL},
        digests={**toolbox.digests, ASK: _digest()},
    )
