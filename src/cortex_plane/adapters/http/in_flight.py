"""How many requests of an org are in flight in this process.

A request enters once its caller is known, and leaves with its answer. One that only waits (a stream, a long poll) has left
before: it is counted among the open streams.
"""

from __future__ import annotations

from dataclasses import dataclass
from uuid import UUID

from starlette.types import Scope

from cortex_plane.domain.errors import TooMany
from cortex_plane.domain.shares import Shares

MOST = 256
MOST_OF_ORG = 64
STREAMS_OF_ORG = 1000

_ENTERED = "in_flight"


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestLimits:
    """What one API process serves at a time."""

    in_flight: int = MOST
    in_flight_of_org: int = MOST_OF_ORG
    streams_of_org: int = STREAMS_OF_ORG


DEFAULT_LIMITS = RequestLimits()


class InFlight:
    def __init__(self, limits: RequestLimits = DEFAULT_LIMITS) -> None:
        self._shares = Shares(limits.in_flight, share=limits.in_flight_of_org)

    def enter(self, scope: Scope, org: UUID) -> None:
        """Raises ``TooMany`` where the org, or the process, has as many as it may."""
        if not self._shares.has_room(org):
            raise TooMany(
                "As many requests of this org, or of this process, are in flight as it serves at a time.",
                code="too_many_in_flight",
                hint="Wait as long as the header Retry-After says, and send fewer requests at a time.",
                retry_after=1,
            )
        self._shares.take(org)
        scope["state"][_ENTERED] = (self._shares, org)


def leave(scope: Scope) -> None:
    """The request of this scope is answered, or only waits from now on."""
    entered = scope["state"].pop(_ENTERED, None)
    if entered is not None:
        shares, org = entered
        shares.give_back(org)
