"""Cortex Plane: agents that never lose their place and never act without permission.

The public names load when they are first used: a program that guards one function does not pay for writing agents.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cortex_plane.agents.model.agents import AgentDraft as AgentDraft
    from cortex_plane.agents.model.agents import ModelConfig as ModelConfig
    from cortex_plane.agents.model.tools import DidNotHappen as DidNotHappen
    from cortex_plane.agents.model.tools import Happened as Happened
    from cortex_plane.agents.model.tools import ToolError as ToolError
    from cortex_plane.agents.model.tools import UncertainOutcome as UncertainOutcome
    from cortex_plane.client.client import Client as Client
    from cortex_plane.client.dialogue import ApprovalPending as ApprovalPending
    from cortex_plane.client.dialogue import Denied as Denied
    from cortex_plane.gates.files.builder import AtlasBuilder as AtlasBuilder
    from cortex_plane.jobs.model.jobs import JobDraft as JobDraft
    from cortex_plane.kernel.errors import ContextMisused as ContextMisused
    from cortex_plane.kernel.errors import CortexError as CortexError
    from cortex_plane.kernel.errors import GateClosed as GateClosed
    from cortex_plane.kernel.errors import StepFailed as StepFailed
    from cortex_plane.kernel.errors import ToolDenied as ToolDenied
    from cortex_plane.kernel.errors import ToolFailed as ToolFailed
    from cortex_plane.kernel.errors import WaitTimeout as WaitTimeout
    from cortex_plane.mcp_client.servers import Secret as Secret
    from cortex_plane.sessions.model.sessions import InboundMessage as InboundMessage
    from cortex_plane.tenancy.model.access import KeyDraft as KeyDraft
    from cortex_plane.tenancy.model.identities import ConnectionDraft as ConnectionDraft
    from cortex_plane.tenancy.model.orgs import Role as Role
    from cortex_plane.worker.code.context import Context as Context
    from cortex_plane.worker.code.context import Decision as Decision
    from cortex_plane.worker.tools.app import App as App
    from cortex_plane.worker.tools.tool import ToolContext as ToolContext

__version__ = "0.1.0"

_MODULES = {
    name: module
    for module, names in {
        "agents.model.agents": "AgentDraft ModelConfig",
        "agents.model.tools": "DidNotHappen Happened ToolError UncertainOutcome",
        "client.client": "Client",
        "client.dialogue": "ApprovalPending Denied",
        "gates.files.builder": "AtlasBuilder",
        "jobs.model.jobs": "JobDraft",
        "kernel.errors": "ContextMisused CortexError GateClosed StepFailed ToolDenied ToolFailed WaitTimeout",
        "sessions.model.sessions": "InboundMessage",
        "tenancy.model.access": "KeyDraft",
        "tenancy.model.identities": "ConnectionDraft",
        "tenancy.model.orgs": "Role",
        "worker.code.context": "Context Decision",
        "mcp_client.servers": "Secret",
        "worker.tools.app": "App",
        "worker.tools.tool": "ToolContext",
    }.items()
    for name in names.split()
}
"""The module of each public name: the same as above, for the interpreter. A test compares them."""

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> object:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
