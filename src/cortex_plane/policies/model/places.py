"""Shared places: where a request is posted for everybody who reads there, besides or instead of its approvers' own addresses.

Among the `channels` of a policy, a place is one text: `slack:#deploys`, or `slack@NAME:#deploys` over a connection of that name.
The name of a channel has no colon, so nothing else looks like it. `notify_places` in `db/functions/outbox.sql` reads it, too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

PLACE_CHANNELS = ("slack", "discord", "telegram", "github", "gitlab")
"""The channels that have places which several people read."""
MAX_PLACES = 5
MAX_ADDRESS = 255
_ENTRY = re.compile(r"([a-z][a-z0-9_-]*)(?:@([^:]+))?:(.+)", re.DOTALL)


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    channel: str
    address: str
    """As the channel names it: `#deploys`, `acme/shop#12`."""
    connection: str | None = None
    """The name of the connection; None: the only one of this channel."""

    @property
    def entry(self) -> str:
        """Among the channels of a policy."""
        name = "" if self.connection is None else f"@{self.connection}"
        return f"{self.channel}{name}:{self.address}"


def read_place(entry: str) -> Place | None:
    """None for the name of a channel."""
    match = _ENTRY.fullmatch(entry)
    return None if match is None else Place(channel=match[1], connection=match[2], address=match[3])


def channel_of(entry: str) -> str:
    place = read_place(entry)
    return entry if place is None else place.channel


def count_places(channels: Iterable[str]) -> int:
    return sum(read_place(entry) is not None for entry in channels)


def fewer_channels(channels: tuple[str, ...] | None, limit: tuple[str, ...]) -> tuple[str, ...]:
    """What both let through: a channel lets its own places through, a place nothing but itself."""
    if channels is None:
        return limit
    first = [entry for entry in channels if _admits(limit, entry)]
    return tuple(dict.fromkeys([*first, *(entry for entry in limit if _admits(channels, entry))]))


def _admits(channels: tuple[str, ...], entry: str) -> bool:
    return entry in channels or (read_place(entry) is not None and channel_of(entry) in channels)
