"""The typed client: the REST surface as Python, with the domain's own values."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cortex_plane.client.client import Client

__all__ = ["Client"]


def __getattr__(name: str) -> object:
    """Loads when it is first used: `client.access` is also read by what needs no client."""
    if name == "Client":
        from cortex_plane.client.client import Client

        return Client
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
