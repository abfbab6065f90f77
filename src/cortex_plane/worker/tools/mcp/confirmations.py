"""What a steward of the org confirmed about a tool, put on the call of it."""

from __future__ import annotations

from cortex_plane.policies.rules.engine import CompiledPolicies
from cortex_plane.worker.calls import Call, CallKind, Toolbox
from cortex_plane.worker.tools.mcp.remote_tool import RemoteTool


def as_confirmed(call: Call, policies: CompiledPolicies, app: str, toolbox: Toolbox) -> None:
    """Before it is judged, each time: confirmations come and go as policies do, and are kept with them.

    A call that the ledger knows stays what it was written as; only what is judged of it is of today.
    """
    if not isinstance(call.tool, RemoteTool) or call.digest is None:
        return
    call.tool = call.tool.trusted(policies.confirmed.get((app, call.name, call.digest)))
    if call.status is None and not call.written:
        call.kind = CallKind.EFFECT if toolbox.has_side_effects(call.tool) else CallKind.READ
        call.declared = None
