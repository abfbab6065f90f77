"""Cortex Plane: agents that never lose their place and never act without permission.

The public names load when they are first used: a program that guards one function does not pay for writing agents.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cortex_plane.client.client import Client
    from cortex_plane.client.dialogue import ApprovalPending, Denied
    from cortex_plane.domain.agents import AgentDraft, ModelConfig
    from cortex_plane.domain.connections import ConnectionDraft
    from cortex_plane.domain.errors import CortexError
    from cortex_plane.domain.job_drafts import JobDraft
    from cortex_plane.domain.journal import (
        ContextMisused,
        GateClosed,
        StepFailed,
        ToolDenied,
        ToolFailed,
        WaitTimeout,
    )
    from cortex_plane.domain.keys import KeyDraft
    from cortex_plane.domain.members import Role
    from cortex_plane.domain.messages import InboundMessage
    from cortex_plane.domain.tools import DidNotHappen, Happened, ToolError, UncertainOutcome
    from cortex_plane.runtime.code.context import Context, Decision
    from cortex_plane.runtime.tools.app import App
    from cortex_plane.runtime.tools.context import ToolContext
    from cortex_plane.runtime.tools.mcp.servers import Secret

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
    "AgentDraft": "domain.agents",
    "App": "runtime.tools.app",
    "ApprovalPending": "client.dialogue",
    "Client": "client.client",
    "ConnectionDraft": "domain.connections",
    "Context": "runtime.code.context",
    "ContextMisused": "domain.journal",
    "CortexError": "domain.errors",
    "Decision": "runtime.code.context",
    "Denied": "client.dialogue",
    "DidNotHappen": "domain.tools",
    "GateClosed": "domain.journal",
    "Happened": "domain.tools",
    "InboundMessage": "domain.messages",
    "JobDraft": "domain.job_drafts",
    "KeyDraft": "domain.keys",
    "ModelConfig": "domain.agents",
    "Role": "domain.members",
    "Secret": "runtime.tools.mcp.servers",
    "StepFailed": "domain.journal",
    "ToolContext": "runtime.tools.context",
    "ToolDenied": "domain.journal",
    "ToolError": "domain.tools",
    "ToolFailed": "domain.journal",
    "UncertainOutcome": "domain.tools",
    "WaitTimeout": "domain.journal",
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
