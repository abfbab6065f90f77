"""Which tools a caller need not see, because the policies deny every call of them."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import structlog

from cortex_plane.kernel.errors import CortexError
from cortex_plane.mcp_gateway.gateway_file import risk_of
from cortex_plane.policies.model.versions import MAX_TERMS, DeniedToolsRequest, ToolTerms

if TYPE_CHECKING:
    from cortex_plane.client import Client
    from cortex_plane.mcp_gateway.upstreams import GatewayTool

log = structlog.get_logger()

FRESH_SECONDS = 30.0
MAX_CALLERS = 1000


class PolicyView:
    """What one agent may never do. A tool that stays visible is judged when it is called, so an old view denies nothing less."""

    def __init__(self, agent: str) -> None:
        self._agent = agent
        self._views: OrderedDict[str, tuple[float, frozenset[str], frozenset[str]]] = OrderedDict()

    async def denied(self, caller: str, plane: Client, tools: Sequence[GatewayTool]) -> frozenset[str]:
        """The plane's names of those to hide."""
        names = frozenset(tool.plane_name for tool in tools)
        at, known, denied = self._views.get(caller, (0.0, frozenset(), frozenset()))
        if time.monotonic() - at < FRESH_SECONDS and known == names:
            return denied
        terms = [
            ToolTerms(tool=tool.plane_name, read_only=tool.override.read_only, risk=risk_of(tool.override))
            for tool in tools
        ]
        hidden: set[str] = set()
        try:
            for start in range(0, len(terms), MAX_TERMS):
                question = DeniedToolsRequest(agent=self._agent, tools=terms[start : start + MAX_TERMS])
                hidden.update((await plane.policies.denied_tools(question)).denied)
        except CortexError as error:
            log.warning("no tool is hidden: the plane does not say which are denied", reason=error.message)
            return frozenset()
        self._views[caller] = (time.monotonic(), names, frozenset(hidden))
        while len(self._views) > MAX_CALLERS:
            self._views.popitem(last=False)
        return frozenset(hidden)
