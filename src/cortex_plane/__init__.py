"""Cortex Plane: agents that never lose their place and never act without permission.

The public names load when they are first used: a program that guards one function does not pay for writing agents.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cortex_plane.agents.model.agents import AgentDraft, ModelConfig
    from cortex_plane.agents.model.tools import DidNotHappen, Happened, ToolError, UncertainOutcome
    from cortex_plane.client.client import Client
    from cortex_plane.client.dialogue import ApprovalPending, Denied
    from cortex_plane.jobs.model.jobs import JobDraft
    from cortex_plane.jobs.model.journal import (
        ContextMisused,
        GateClosed,
        StepFailed,
        ToolDenied,
        ToolFailed,
        WaitTimeout,
    )
    from cortex_plane.kernel.errors import CortexError
    from cortex_plane.sessions.model.sessions import InboundMessage
    from cortex_plane.tenancy.model.access import KeyDraft
    from cortex_plane.tenancy.model.identities import ConnectionDraft
    from cortex_plane.tenancy.model.orgs import Role
    from cortex_plane.worker.code.context import Context, Decision
    from cortex_plane.worker.mcp.servers import Secret
    from cortex_plane.worker.tools.app import App
    from cortex_plane.worker.tools.tool import ToolContext

__version__ = "0.1.0"

__all__ = [
    "AgentDraft",
    "App",
    "ApprovalPending",
    "Client",
    "ConnectionDraft",
    "Context",
    "ContextMisused",
    "CortexError",
    "Decision",
    "Denied",
    "DidNotHappen",
    "GateClosed",
    "Happened",
    "InboundMessage",
    "JobDraft",
    "KeyDraft",
    "ModelConfig",
    "Role",
    "Secret",
    "StepFailed",
    "ToolContext",
    "ToolDenied",
    "ToolError",
    "ToolFailed",
    "UncertainOutcome",
    "WaitTimeout",
    "__version__",
]

# The module of each name: the same as above, for the interpreter. A test compares them.
_MODULES = {
    "AgentDraft": "agents.model.agents",
    "App": "worker.tools.app",
    "ApprovalPending": "client.dialogue",
    "Client": "client.client",
    "ConnectionDraft": "tenancy.model.identities",
    "Context": "worker.code.context",
    "ContextMisused": "jobs.model.journal",
    "CortexError": "kernel.errors",
    "Decision": "worker.code.context",
    "Denied": "client.dialogue",
    "DidNotHappen": "agents.model.tools",
    "GateClosed": "jobs.model.journal",
    "Happened": "agents.model.tools",
    "InboundMessage": "sessions.model.sessions",
    "JobDraft": "jobs.model.jobs",
    "KeyDraft": "tenancy.model.access",
    "ModelConfig": "agents.model.agents",
    "Role": "tenancy.model.orgs",
    "Secret": "worker.mcp.servers",
    "StepFailed": "jobs.model.journal",
    "ToolContext": "worker.tools.tool",
    "ToolDenied": "jobs.model.journal",
    "ToolError": "agents.model.tools",
    "ToolFailed": "jobs.model.journal",
    "UncertainOutcome": "agents.model.tools",
    "WaitTimeout": "jobs.model.journal",
}


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
