"""Cortex Plane: agents that never lose their place and never act without permission."""

from importlib.metadata import version

from cortex_plane.client import Client
from cortex_plane.domain.errors import CortexError

__version__ = version("cortex-plane")

__all__ = ["Client", "CortexError", "__version__"]
