"""A channel that hands messages to somebody in the same process: the least that a channel can be."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.notifications import Card, Outgoing, Sent, TryAgain, Undeliverable
from tests.channels.behaviour import Arrived, Failure
from tests.fixtures.people import World

_URL = re.compile(r"https?://[^\s\"]+")


class Postbox:
    """Remembers the state that its last message showed, and says nothing twice."""

    def __init__(
        self, channel_type: str = "email", before: Callable[[Outgoing], Awaitable[None]] | None = None
    ) -> None:
        self.channel_type = channel_type
        self.received: list[Outgoing] = []
        self.failures: list[Failure] = []
        self._before = before

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        return _state(card) != shown.get("state")

    async def send(self, outgoing: Outgoing) -> Sent:
        if self._before is not None:
            await self._before(outgoing)
        match self.failures.pop(0) if self.failures else None:
            case Failure.TEMPORARY:
                raise TryAgain("451 the postbox is full")
            case Failure.PERMANENT:
                raise Undeliverable("550 nobody lives here", address=True)
            case Failure.HANG:
                await asyncio.Event().wait()
            case Failure.LOST_ANSWER:
                self.received.append(outgoing)
                raise TryAgain("the line went dead")
        self.received.append(outgoing)
        card = outgoing.content
        state = _state(card) if isinstance(card, Card) else []
        return Sent(message_ref=outgoing.earlier or str(outgoing.id), shown={"state": state})


def _state(card: Card) -> list[Any]:
    reminded = card.occasion == "reminded"
    return [card.status, card.version, card.escalation_level, len(card.votes), len(card.delegations), reminded]


class PostboxStage:
    redelivers = True
    pause = None

    def __init__(self, channel_type: str = "email") -> None:
        self.channel = Postbox(channel_type)

    async def connect(self, world: World) -> UUID:
        return await connect(world, self.channel.channel_type)

    def address(self, name: str) -> str:
        return f"{name}@example.com"

    async def arrived(self) -> list[Arrived]:
        return [_arrived(each) for each in self.channel.received]

    def fail(self, how: Failure, times: int) -> None:
        self.channel.failures += [how] * times


async def connect(world: World, channel_type: str = "email", name: str = "post") -> UUID:
    """A connection that needs nothing else."""
    id = new_id()
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows(
            "insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, $3, $4)",
            world.org_id, id, channel_type, name,
        )  # fmt: skip
    return id


def _arrived(outgoing: Outgoing) -> Arrived:
    card = outgoing.content
    assert isinstance(card, Card)
    shown = {**asdict(card), "token": None}
    text = f"{json.dumps(shown, default=str, ensure_ascii=False)}\n{card.arguments}"
    return Arrived(
        address=outgoing.target.address,
        thread=str(outgoing.id),
        status=ApprovalStatus(card.status).value,
        text=text,
        urls=[url for url in (card.url, card.approve_url, card.deny_url) if url],
    )
