"""Signals, as the client sees them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from cortex_plane.client.transport import Transport
from cortex_plane.jobs.model.journal import Signal, SignalDraft, SignalReceipt


class Signals:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    async def send(
        self, name: str, key: str, payload: Any = None, *, idempotency_key: str | None = None
    ) -> SignalReceipt:
        """Wake every job that waits for it, now or later. Sending the same again changes nothing."""
        draft = SignalDraft(name=name, key=key, payload=payload)
        return await self._transport.one(
            SignalReceipt, "POST", "/v1/signals", body=draft, idempotency_key=idempotency_key
        )

    def list(
        self, limit: int | None = None, *, name: str | None = None, key: str | None = None
    ) -> AsyncIterator[Signal]:
        """Newest first; whoever is not staff sees their own."""
        return self._transport.pages(Signal, "/v1/signals", limit=limit, name=name, key=key)
