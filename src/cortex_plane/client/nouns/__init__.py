"""The larger nouns of the client: one class per noun, one method per route."""

from __future__ import annotations

from cortex_plane.client.transport import Transport


class Noun:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport
