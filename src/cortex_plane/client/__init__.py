"""The typed client: the REST surface as Python, with the domain's own values."""

from cortex_plane.client.client import Client

__all__ = ["Client"]
