"""What operations and the runtime need from outside. Adapters and the runtime implement it; bootstrap injects it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from cortex_plane.agents.model.completions import Request, Response, TextChunk, Usage
    from cortex_plane.notify.model.notifications import Card, Outgoing, Sent


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
