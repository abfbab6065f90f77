"""Sockets to vendors: a WebSocket over a connection to an address that was vetted, as requests go over."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.errors import extra
from cortex_plane.notify.model.notifications import TryAgain

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection

MAX_MESSAGE_BYTES = 1024 * 1024
OPEN_SECONDS = 10
CLOSE_SECONDS = 1.0
"""A vendor that does not answer a close must not keep a process from giving the connection to another one."""


def require_websockets(name: str) -> None:
    """Raises ``MissingExtra`` with the extra to install where the package is missing."""
    with extra(name):
        import websockets  # noqa: F401


@contextlib.asynccontextmanager
async def connect_socket(
    client: VendorClient, url: str, name: str, *, ping_seconds: float | None = 20
) -> AsyncIterator[ClientConnection]:
    """``name``: of the socket, in errors. ``ping_seconds`` is None for a protocol with heartbeats of its own. Raises ``TryAgain``, also
    where the connection ends inside, and ``Undeliverable`` for an address that may not be reached."""
    from websockets.asyncio.client import connect
    from websockets.exceptions import WebSocketException

    scheme, separator, rest = url.partition("://")
    is_tls = scheme == "wss"
    if scheme not in ("ws", "wss") or not separator:
        raise TryAgain(f"The vendor named no address for {name}.")
    place = await client.open_socket(f"{'https' if is_tls else 'http'}://{rest}")
    try:
        async with connect(
            url, sock=place, ssl=client.tls() if is_tls else None, proxy=None, open_timeout=OPEN_SECONDS,
            close_timeout=CLOSE_SECONDS, max_size=MAX_MESSAGE_BYTES, compression=None, ping_interval=ping_seconds,
        ) as connection:  # fmt: skip
            yield connection
    except (WebSocketException, OSError, TimeoutError) as error:
        raise TryAgain(f"The connection of {name} ended: {type(error).__name__}.") from None
    finally:
        place.close()
