"""Listens to connections whose channel fetches what people send, by polls or a socket.

One process listens to a connection at a time. It renews its lease every few seconds; another process takes over what a dead or stopped one
had, and a process that finds that it lost a connection stops at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

import structlog

from cortex_plane.db.database import Database
from cortex_plane.kernel.errors import CortexError
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.channels import InboundItem
from cortex_plane.notify.model.notifications import TryAgain, Undeliverable
from cortex_plane.notify.verbs import deliveries, listeners
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.notify.verbs.listeners import ListenerLease

log = structlog.get_logger()

BEAT_SECONDS = 5.0
STOP_SECONDS = 2.0
PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
"""Seconds before a listener that failed begins anew."""


class ChannelListener:
    """``run`` until cancelled. ``wake``: whoever handles what was stored."""

    def __init__(
        self,
        db: Database,
        channels: Mapping[str, InteractiveChannel],
        wake: Callable[[], None],
        *,
        beat_seconds: float = BEAT_SECONDS,
        pauses: Sequence[float] = PAUSES,
    ) -> None:
        self._db, self._wake = db, wake
        self._channels = {kind: channel for kind, channel in channels.items() if channel.traits.listens}
        self._beat, self._pauses = beat_seconds, pauses
        self.id = new_id()
        self._held: dict[UUID, tuple[ListenerLease, asyncio.Task[None]]] = {}

    @property
    def connections(self) -> list[UUID]:
        """What this process listens to."""
        return list(self._held)

    async def run(self) -> None:
        if not self._channels:
            return
        try:
            while True:
                await self.beat()
                await asyncio.sleep(self._beat * random.uniform(0.8, 1.0))  # noqa: S311 -- jitter
        finally:
            await self.leave()

    async def beat(self) -> None:
        """Renew what this process has, stop what it lost, and take over what nobody has."""
        try:
            await self._renew()
            for lease in await listeners.claim_listeners(
                self._db, self.id, list(self._channels), listeners.MOST_AT_ONCE
            ):
                self._held[lease.connection_id] = (lease, asyncio.create_task(self._listen(lease)))
        except (CortexError, TimeoutError) as error:
            log.warning("listener cannot look", error=str(error))
        except Exception:
            log.exception("listener failed")

    async def _renew(self) -> None:
        if not self._held:
            return
        renewed_ids = await listeners.renew_listeners(self._db, self.id, [lease for lease, _ in self._held.values()])
        for id in self._held.keys() - renewed_ids:
            lease, task = self._held.pop(id)
            await _stop(task)
            # Where its connection changed it is free for whoever comes first, this process included.
            await listeners.release_listener(self._db, lease)
            log.info("stopped listening", connection=str(id), epoch=lease.epoch)

    async def _listen(self, lease: ListenerLease) -> None:
        """Until cancelled, or the connection is another process's, or gone."""
        position, failures = lease.cursor, 0

        async def deliver(items: Sequence[InboundItem], cursor: str | None) -> None:
            nonlocal position, failures
            count = await listeners.store_heard(self._db, lease, channel, items, cursor)
            position, failures = cursor or position, 0
            if count:
                self._wake()

        while True:
            try:
                found = await listeners.listener_target(self._db, lease)
                if found is None:
                    return
                channel = self._channels[found[0]]
                await channel.listen(found[1], position, deliver)
            except Undeliverable as error:
                if error.gone:
                    await deliveries.revoke_connection(self._db, lease.org_id, lease.connection_id, error.message)
                    return
                await self._note(lease, error.message)
            except CortexError as error:
                if error.code == "listener_lost":
                    return
                await self._note(lease, error.message)
                wait = error.after_seconds if isinstance(error, TryAgain) else None
                await asyncio.sleep(wait or 0.0)
            except Exception as error:
                log.exception("listener failed", connection=str(lease.connection_id))
                await self._note(lease, f"The listener failed: {type(error).__name__}.")
            pause = self._pauses[min(failures, len(self._pauses) - 1)]
            failures += 1
            await asyncio.sleep(pause * random.uniform(0.8, 1.2))  # noqa: S311 -- jitter

    async def _note(self, lease: ListenerLease, error: str) -> None:
        log.warning("cannot listen", connection=str(lease.connection_id), error=error)
        with contextlib.suppress(CortexError, TimeoutError):
            await listeners.note_error(self._db, lease, error)

    async def leave(self) -> None:
        """Others may listen at once."""
        held, self._held = list(self._held.values()), {}
        for lease, task in held:
            await _stop(task)
            with contextlib.suppress(CortexError, TimeoutError):
                await listeners.release_listener(self._db, lease)


async def _stop(task: asyncio.Task[None]) -> None:
    """A socket that takes long to close must not keep the leases of others from being renewed."""
    task.cancel()
    await asyncio.wait([task], timeout=STOP_SECONDS)
