"""GitHub: approvals as comments on issues and pull requests, decided by commands in comments."""

from cortex_plane.channels.github.channel import GitHubChannel

__all__ = ["GitHubChannel"]
