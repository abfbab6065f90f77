"""Quorums: how many people, and which of them, are enough.

People are counted as humans. Until somebody has proven a channel of their own (a link in a mail, a code typed in a chat), whoever
enrolled or promoted them could be the one who votes in their name; and whoever set up a webhook could have made what comes through
it. Of votes that could come from one human, one counts. Who could be behind a vote is found in SQL (``voters_of``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar
from uuid import UUID

from cortex_plane.policies.model.policies import Quorum
from cortex_plane.tenancy.model.orgs import Role

ONE_HUMAN = (
    "one of them enrolled or promoted the other, or set up the webhook that the vote came through, and nothing proved that they"
    " are two when it was given"
)
"""Why a vote does not add to a quorum."""


class HumanVote(Protocol):
    @property
    def behind(self) -> Sequence[UUID]:
        """Everybody who could be the human behind it, whoever gave it first."""
        ...


V = TypeVar("V", bound=HumanVote)


@dataclass(frozen=True, kw_only=True, slots=True)
class CountedVote:
    """A yes to the version that is there, by somebody who could still give it, with the roles that they have now."""

    member_id: UUID
    roles: frozenset[Role]
    behind: Sequence[UUID] = ()
    answer: str | None = None
    """What it says about an uncertain call."""


def independent(votes: Sequence[V]) -> list[V]:
    """Votes of which no two could come from one human, of ``votes`` in the order in which they were given.

    Those that only one person can have given come first: so one more vote never makes the number smaller. The number is never
    larger than that of the humans who must have voted.
    """
    kept: list[V] = []
    seen: set[UUID] = set()
    for vote in sorted(votes, key=lambda vote: len(vote.behind) > 1):
        if seen.isdisjoint(vote.behind):
            kept.append(vote)
            seen.update(vote.behind)
    return kept


def same_human(votes: Sequence[V], vote: V) -> V | None:
    """The vote that counts instead of this one; None where this one counts."""
    counted = independent(votes)
    if any(each is vote for each in counted):
        return None
    return next((each for each in counted if not set(each.behind).isdisjoint(vote.behind)), None)


def is_reached(quorum: Quorum, votes: Sequence[CountedVote]) -> bool:
    """Whether these votes are enough."""
    return len(independent(votes)) >= quorum.votes and all(
        len(independent([vote for vote in votes if needed.role in vote.roles])) >= needed.votes
        for needed in quorum.roles
    )


def is_met(quorum: Quorum, roles_of_voters: Sequence[frozenset[Role]]) -> bool:
    """Whether these people could be enough: each of them may still prove to be a human of their own."""
    return len(roles_of_voters) >= quorum.votes and all(
        sum(needed.role in roles for roles in roles_of_voters) >= needed.votes for needed in quorum.roles
    )


def quorum_said(quorum: Quorum) -> str:
    roles = ", ".join(f"{needed.votes} {needed.role}" for needed in quorum.roles)
    votes = f"{quorum.votes} vote{'s' if quorum.votes > 1 else ''}"
    return f"{votes}, of them {roles}" if roles else votes
