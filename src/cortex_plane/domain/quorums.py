"""Quorums: how many people, and which of them, are enough."""

from __future__ import annotations

from collections.abc import Sequence

from cortex_plane.domain.members import Role
from cortex_plane.domain.policies import Quorum


def is_met(quorum: Quorum, roles_of_voters: Sequence[frozenset[Role]]) -> bool:
    """Whether these people are enough."""
    return len(roles_of_voters) >= quorum.votes and all(
        sum(needed.role in roles for roles in roles_of_voters) >= needed.votes for needed in quorum.roles
    )


def quorum_said(quorum: Quorum) -> str:
    roles = ", ".join(f"{needed.votes} {needed.role}" for needed in quorum.roles)
    votes = f"{quorum.votes} vote{'s' if quorum.votes > 1 else ''}"
    return f"{votes}, of them {roles}" if roles else votes
