"""Where this process copies signed roots to, as the settings say."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

from cortex_plane.channels.root_copies import RootsAddress, RootsFile
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.main.settings import OFF, Settings
from cortex_plane.proof.verbs.roots import RootPlace, copied_to

FILE = "roots.jsonl"


@contextlib.asynccontextmanager
async def copying_roots(settings: Settings) -> AsyncIterator[None]:
    """For as long as the block runs."""
    places: list[RootPlace] = []
    async with contextlib.AsyncExitStack() as stack:
        if settings.roots_file != OFF:
            places.append(RootsFile((settings.home / (settings.roots_file or FILE)).absolute()))
        if settings.roots_url is not None:
            from cortex_plane.channels.pinned_http import PinnedClient

            # The operator names this one address, wherever it is; it is no tenant's.
            parts = urlsplit(settings.roots_url)
            own = Allowed(hosts=frozenset({((parts.hostname or "").lower(), None)}))
            address = RootsAddress(settings.roots_url, PinnedClient(own))
            stack.push_async_callback(address.close)
            places.append(address)
        stack.enter_context(copied_to(places))
        yield
