"""Cortex Plane: agents that never lose their place and never act without permission."""

from importlib.metadata import version

from cortex_plane.client import Client
from cortex_plane.client.dialogue import ApprovalPending, Denied
from cortex_plane.domain.agents import AgentDraft, ModelConfig
from cortex_plane.domain.connections import ConnectionDraft
from cortex_plane.domain.errors import CortexError
from cortex_plane.domain.gates import GateClosed
from cortex_plane.domain.jobs import JobDraft
from cortex_plane.domain.journal import ContextMisused, StepFailed, ToolDenied, ToolFailed, WaitTimeout
from cortex_plane.domain.keys import KeyDraft
from cortex_plane.domain.members import Role
from cortex_plane.domain.messages import InboundMessage
from cortex_plane.domain.tools import DidNotHappen, Happened, ToolError, UncertainOutcome
from cortex_plane.runtime.code.context import Context, Decision
from cortex_plane.runtime.tools.app import App
from cortex_plane.runtime.tools.context import ToolContext
from cortex_plane.runtime.tools.mcp.servers import Secret

__version__ = version("cortex-plane")

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
