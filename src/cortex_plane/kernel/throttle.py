"""How often one address may guess. Only failures count, and only failures are refused: a right token or link from the same address
is taken at any time, whoever else guesses there."""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

from cortex_plane.kernel.errors import TooMany

FAILURES = 30
PER_SECONDS = 60.0
ADDRESSES = 10_000
"""How many are remembered: those that failed longest ago are forgotten first."""


class Throttle:
    """A bucket of failures for each address, which fills again by itself. In the memory of one process."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def failed(self, host: str) -> None:
        """Count a failure. Raises ``TooMany`` in the place of its reason where the address failed too often."""
        address = _network(host)
        left = self._left(address)
        self._buckets[address] = (max(left - 1, 0.0), self._clock())
        self._buckets.move_to_end(address)
        if len(self._buckets) > ADDRESSES:
            self._buckets.popitem(last=False)
        if left < 1:
            raise TooMany(
                "Too many tokens or links from this address were wrong.",
                code="too_many_failures",
                hint="Wait a minute, then open the link or copy the token from the newest message.",
            )

    def _left(self, address: str) -> float:
        left, at = self._buckets.get(address, (float(FAILURES), 0.0))
        return min(float(FAILURES), left + (self._clock() - at) * FAILURES / PER_SECONDS)


def _network(host: str) -> str:
    """Of IPv6 the network: whoever has one address there has all of them."""
    try:
        given = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(given, ipaddress.IPv4Address):
        return host
    return str(ipaddress.ip_network((given, 64), strict=False))
