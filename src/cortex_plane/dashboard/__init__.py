"""The dashboard: the inbox, the card of an approval, and the page of a job, rendered on the server."""

from cortex_plane.dashboard.routes import mount

__all__ = ["mount"]
