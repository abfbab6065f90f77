"""Cortex Plane: agents that never lose their place and never act without permission."""

from importlib.metadata import version

from cortex_plane.client import Client
from cortex_plane.domain.agents import AgentDraft, ModelConfig
from cortex_plane.domain.connections import ConnectionDraft
from cortex_plane.domain.errors import CortexError
from cortex_plane.domain.jobs import JobDraft
from cortex_plane.domain.keys import KeyDraft
from cortex_plane.domain.members import Role
from cortex_plane.domain.messages import InboundMessage

__version__ = version("cortex-plane")

__all__ = [
    "AgentDraft",
    "Client",
    "ConnectionDraft",
    "CortexError",
    "InboundMessage",
    "JobDraft",
    "KeyDraft",
    "ModelConfig",
    "Role",
    "__version__",
]
