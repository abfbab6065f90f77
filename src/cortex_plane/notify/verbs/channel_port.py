"""The port that every channel implements. `main/reach.py` registers the channels of a plane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from cortex_plane.notify.model import channels
from cortex_plane.notify.model.notifications import Card, Outgoing, Sent, Target


class ChannelPort(Protocol):
    """Carries messages to people. Keeps nothing between two messages that it could not do without.

    Two things it may say besides. ``retry_schedule``: how many seconds to wait after each failure; without it the plane's own
    times count. ``carries_credentials = False``: what it carries is read by others than its person, so its cards hold neither
    links nor a token.
    """

    channel_type: str

    def concerns(self, card: Card, last: Mapping[str, Any]) -> bool:
        """Whether this card says something that the last one did not: a mail cannot be edited, and nobody wants one for
        every vote. ``last`` is what the channel remembered of the last one."""
        ...

    async def send(self, outgoing: Outgoing) -> Sent:
        """Deliver it, or bring the earlier message up to date; of what takes several messages, the next one. Raises ``TryAgain`` or
        ``Undeliverable``."""
        ...


@runtime_checkable
class InteractiveChannel(ChannelPort, Protocol):
    """A channel on which people also act: they press buttons of cards and write to agents."""

    traits: channels.ChannelTraits
    fields: Sequence[channels.ConnectionField]
    """What a connection needs."""

    def shows_whole(self, card: Card) -> bool:
        """Whether a message of this channel shows every argument of the card, so that it may carry `Approve`."""
        ...

    async def identify(self, target: Target, inbound_url: str | None) -> channels.ConnectionIdentity:
        """Ask the vendor who the connection is, and set up there what can be set up; the same again changes nothing.
        ``inbound_url``: where the vendor is to post events; None where the plane has no address that it could reach. Raises
        ``InvalidInput`` with the field that is wrong, ``TryAgain`` where the vendor does not answer."""
        ...

    def receive(self, target: Target, request: channels.InboundRequest) -> channels.ReceivedRequest:
        """Verify the raw bytes, in constant time, and split them. No I/O. Raises ``Unauthenticated`` for a bad signature and
        ``InvalidInput`` for a payload that is malformed."""
        ...

    def read(
        self, payload: Mapping[str, Any]
    ) -> channels.InboundEvent | channels.DecidedCall | channels.DeliveryReport | channels.ConnectionRevoked | None:
        """What a stored item says; None for what concerns nobody."""
        ...

    async def answer(self, target: Target, event: channels.InboundEvent, answer: channels.InboundAnswer) -> str | None:
        """Show it to whoever acted. Returns the ``message_ref`` to which their words will reply, where the answer asks for words and
        the channel takes them as a reply. A vendor that does not take it any more is no error."""
        ...

    async def listen(self, target: Target, cursor: str | None, deliver: channels.Deliver) -> None:
        """Fetch what people send until cancelled, from ``cursor`` on. Only where ``traits.listens``, and only in one process for
        each connection."""
        ...


# Channels whose people link accounts by OAuth also implement `AccountChannel` of `tenancy/verbs/served_channels.py`.


@runtime_checkable
class MoreChannel(Protocol):
    """What an interactive channel does besides whose messages are too short for most requests: its cards have a button `More`."""

    async def show_more(self, target: Target, event: channels.ButtonPress, card: Card) -> None:
        """Send all of the card, and where it can be opened, to whoever pressed."""
        ...


@runtime_checkable
class ActivityChannel(Protocol):
    """What an interactive channel does besides where people can see that an agent works on what they wrote."""

    async def show_activity(self, target: Target, event: channels.ChatMessage) -> None:
        """For some seconds, as the vendor has it: `typing…`. Called once a message has reached an agent, it may do nothing so as not to
        use up the vendor's limits. Raises ``TryAgain`` or ``Undeliverable``, which nobody needs to hear of."""
        ...


@runtime_checkable
class DeploymentGate(Protocol):
    """What an interactive channel does besides whose vendor holds deployments: it sends each a ``DeploymentVerdict``."""

    channel_type: str

    async def confirm_deployment(
        self, target: Target, deployment: channels.HeldDeployment
    ) -> channels.HeldDeployment | None:
        """The deployment as the vendor has it now, where its event does not prove what it says; None where it does not wait for the
        plane. Raises ``TryAgain`` or ``Undeliverable``."""
        ...

    def verdict_address(self, arguments: Mapping[str, Any]) -> str:
        """Where the verdict goes, of the arguments of a ``HeldDeployment``."""
        ...
