"""GitLab: approvals as notes on issues and merge requests, decided by commands in notes."""

from cortex_plane.channels.gitlab.channel import GitLabChannel

__all__ = ["GitLabChannel"]
