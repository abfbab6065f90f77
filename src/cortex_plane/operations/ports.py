"""What operations and the runtime need from outside. Adapters and the runtime implement it; bootstrap injects it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Protocol
from uuid import UUID

if TYPE_CHECKING:
    from cortex_plane.domain.models import Request, Response, TextChunk, Usage
    from cortex_plane.domain.notifications import Card, Outgoing, Sent
    from cortex_plane.domain.root_copies import RootCopy, RootMark

PauseSource = Literal["operator", "approval", "policy"]
"""Who stops a session, and who lets it go on, in the words of spec 4."""


class ModelBackend(Protocol):
    """Something that answers for a language model. Keeps nothing between two requests."""

    def stream(self, request: Request) -> AsyncIterator[TextChunk | Usage | Response]:
        """Any number of chunks, then exactly one response, last. Raises `ModelError`.

        A `Usage` in between says what was counted so far: it is what counts where the answer breaks off.
        """
        ...


class Channel(Protocol):
    """Carries messages to people. Keeps nothing between two messages that it could not do without.

    Two things it may say besides. ``retry_schedule``: how many seconds to wait after each failure; without it the plane's own
    times count. ``carries_credentials = False``: what it carries is read by others than its person, so its cards hold neither
    links nor a token.
    """

    channel_type: str

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        """Whether this card says something that the last one did not: a mail cannot be edited, and nobody wants one for
        every vote. ``shown`` is what the channel remembered of the last one."""
        ...

    async def send(self, outgoing: Outgoing) -> Sent:
        """Deliver it, or bring the earlier message up to date. Raises ``TryAgain`` or ``Undeliverable``."""
        ...


class RootPlace(Protocol):
    """Somewhere outside of the database that keeps copies of signed roots."""

    name: str
    begins_with_the_newest: bool
    """Of an org that it does not know it wants the newest root alone, and not all there are."""

    async def last(self, org_id: UUID) -> RootMark | None:
        """How far it got with this org."""
        ...

    async def add(self, copies: Sequence[RootCopy]) -> None:
        """Roots of one org in their order. What is there already stays as it is."""
        ...


class Meters(Protocol):
    """Counts what happened, in the process in which it happened. Called after the commit; never waits, never fails.

    ``org_id`` is the only id that it takes: a figure for every session or approval would be one for nobody.
    """

    def paused(self, org_id: UUID, source: PauseSource) -> None:
        """A session was asked to pause, or its job began to wait for a person."""
        ...

    def suspended(self, org_id: UUID, seconds: float) -> None:
        """It stopped, so long after it was asked to."""
        ...

    def resumed(self, org_id: UUID, by: PauseSource) -> None:
        """What held it was lifted."""
        ...

    def woken(self, org_id: UUID, seconds: float) -> None:
        """It runs again, so long after it was resumed."""
        ...

    def requested(self, org_id: UUID, template: str) -> None:
        """A person is asked for an approval."""
        ...

    def joined(self, org_id: UUID) -> None:
        """An identical call joined a request that was there."""
        ...

    def decided(self, org_id: UUID, template: str, decision: str, channel: str, seconds: float) -> None:
        """An approval was approved or denied, so long after it was requested."""
        ...

    def expired(self, org_id: UUID, template: str) -> None:
        """Nobody decided in time."""
        ...

    def ticked(self, seconds: float) -> None:
        """A scheduler looked for what is due, and did it."""
        ...

    def escalated(self, org_id: UUID, template: str, to_level: int) -> None:
        """More people are asked."""
        ...

    def delegated(self, org_id: UUID) -> None:
        """Somebody handed their part in an approval to somebody else."""
        ...

    def called_back(self, channel: str, result: str) -> None:
        """A decision came from outside: `ok`, `hmac_invalid`, `duplicate`, `conflict` or `expired_link`."""
        ...

    def forged(self, kind: str) -> None:
        """A row with a false MAC was refused."""
        ...

    def delivered(self, channel: str, result: str) -> None:
        """A message was sent (`ok`), will be tried again (`retry`), or was given up (`dead`)."""
        ...
