"""Events of channels: what a vendor sent is stored before the vendor is answered, and handled afterwards.

A chat is a lane: its events are handled in the order in which they came, by one process at a time. Whoever takes events has a lease, which
is renewed before each of them; what a dead process left is taken by another. Handling the same event twice has one effect.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import structlog

from cortex_plane.db.database import Database, Transaction
from cortex_plane.kernel.errors import Forbidden
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model.channels import InboundAnswer, InboundEvent, InboundItem
from cortex_plane.notify.model.notifications import Target, TryAgain, Undeliverable
from cortex_plane.notify.store import queries
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.tenancy import store as tenancy_store
from cortex_plane.tenancy.model.access import Actor, ActorKind
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import access

log = structlog.get_logger()

LEASE = timedelta(seconds=60)
"""So long a process has an event that it took. It renews it before it handles one, which takes less."""
PER_LANE = 100
PER_ORG = 4
"""So many chats of an org in a turn, before others have theirs."""
FIRST_ORG = UUID(int=0)
WAITS = (1.0, 5.0, 15.0, 60.0, 180.0, 600.0)
"""Seconds after each failure; after the last one an event is given up. What comes after it in its chat waits for it."""
REMEMBERED = timedelta(days=30)
"""How long an event is known. Nobody sends one again after that."""
AT_A_TIME = 10_000
MAX_ERROR = 500
MAX_EVENT_ID = 200
ANSWER_TRIES = 3
"""So often somebody is answered."""


@dataclass(frozen=True, slots=True)
class EventLane:
    """Events of one chat, in order, taken by one process."""

    org_id: UUID
    claim: UUID
    seqs: tuple[int, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredEvent:
    """An event while it is handled, with what it takes to answer it."""

    org_id: UUID
    seq: int
    event_id: str
    payload: Mapping[str, Any]
    attempts: int
    channel: InteractiveChannel
    target: Target
    agent_id: UUID | None
    """The agent that messages over this connection reach where nobody chose another."""
    is_disabled: bool
    public_url: str
    now: datetime

    @property
    def key(self) -> str:
        """Of what it does. Ids are the vendor's own, so that of the connection belongs to it."""
        return f"channel/{self.target.connection_id}/{self.event_id}"

    def bridge(self) -> Actor:
        """The connection, as whoever brings messages of other people. Nobody calls the API as this actor."""
        return Actor(
            org_id=self.org_id, key_id=self.target.connection_id, kind=ActorKind.SERVICE, name=self.target.connection,
            roles=frozenset({Role.MEMBER}),
        )  # fmt: skip

    async def answer(
        self, event: InboundEvent, text: str, *, ask_for: str | None = None, is_problem: bool = False
    ) -> str | None:
        """Show something to whoever did it. Raises ``TryAgain`` where the vendor is away for now."""
        answer = InboundAnswer(text=text, ask_for=ask_for, is_problem=is_problem)
        try:
            return await self.channel.answer(self.target, event, answer)
        except (TryAgain, Undeliverable) as error:
            # What was done is done, and is seen elsewhere: it must not keep the rest of the chat waiting.
            if isinstance(error, TryAgain) and self.attempts < ANSWER_TRIES:
                raise
            log.warning("answer not delivered", connection=str(self.target.connection_id), error=error.message)
            return None


def connection_target(db: Database, org_id: UUID, row: Mapping[str, Any]) -> Target:
    """What a channel needs of a connection, to speak with nobody in particular."""
    return Target(
        connection_id=row["id"],
        connection=row["name"],
        config=row["config"],
        secrets=tenancy_store.open_secret(db.vault, org_id, row["id"], row["sealed"]),
        address="",
        member="",
    )


async def store_items(
    tx: Transaction, connection_id: UUID, channel: InteractiveChannel, items: Sequence[InboundItem]
) -> int:
    """Those that were not known yet; what says nothing to anybody is left out. Returns how many are new."""
    rows = []
    await tx.rows(tenancy_store.queries.note_inbound, connection_id)
    for item in items:
        payload = _storable(item.payload)
        chat = _chat_of(channel, item.event_id, payload)
        if chat is not None:
            rows.append((_short_id(item.event_id), chat, payload))
    if not rows:
        return 0
    columns = map(list, zip(*rows, strict=True))
    return len(await tx.rows(queries.store_channel_events, tx.org, connection_id, *columns))


def _chat_of(channel: InteractiveChannel, event_id: str, payload: Mapping[str, Any]) -> str | None:
    try:
        event = channel.read(payload)
    except Exception:
        # It is stored, and fails where failures are counted and seen.
        log.exception("event cannot be read", channel=channel.channel_type, event_id=event_id)
        return ""
    if event is None:
        return None
    return event.chat.id if isinstance(event, InboundEvent) else ""


def _storable(payload: Mapping[str, Any]) -> Any:
    """The database stores no U+0000."""
    text = orjson.dumps(payload)
    return orjson.loads(text.replace(rb"\u0000", rb"\ufffd")) if rb"\u0000" in text else payload


def _short_id(event_id: str) -> str:
    is_plain = 1 <= len(event_id) <= MAX_EVENT_ID and "\x00" not in event_id
    return event_id if is_plain else hashlib.sha256(event_id.encode()).hexdigest()


class SenderReassigned(Exception):
    """The sender's id, such as a phone number, has passed to somebody else since it was linked."""


async def person_of(tx: Transaction, event: StoredEvent, source: InboundEvent) -> Actor | None:
    """The person whose sender this is, as proven or vouched for: a member or a guest. Raises ``Forged`` or ``SenderReassigned``."""
    if source.sender.is_bot:
        return None
    mapping = await tenancy_store.verified_mapping(tx, event.target.connection_id, source.sender.id)
    if mapping is None:
        return None
    owner = source.sender.owner
    if owner is not None and mapping.metadata.get("owner", owner) != owner:
        raise SenderReassigned
    await tx.rows(tenancy_store.queries.note_use, mapping.id, owner)
    return await access.actor_for_member(tx, mapping.user_account_id, mapping.id)


def unknown_person() -> Forbidden:
    return Forbidden(
        "I do not know who you are here. Link this account first: get a code on the dashboard under Your channels, then send me"
        " `/link CODE` in a private chat.",
        code="sender_unknown",
    )


async def claim_events(
    db: Database, channels: Sequence[str], lanes: int, *, after: UUID | None = None, full: Sequence[UUID] = ()
) -> list[EventLane]:
    """Chats with something that is due, the org after ``after`` first, and none of those that are ``full``."""
    claim, turns = new_id(), (after or FIRST_ORG, list(full), lanes, PER_ORG, PER_LANE)
    rows = await db.call("claim_channel_events", None, claim, list(channels), *turns, LEASE)
    return [EventLane(row["org_id"], claim, tuple(row["seqs"])) for row in rows]


async def begin_event(
    db: Database, channels: Mapping[str, InteractiveChannel], public_url: str, lane: EventLane, seq: int
) -> StoredEvent | None:
    """None where somebody else has it by now."""
    rows = await db.call("begin_channel_event", lane.org_id, seq, lane.claim, LEASE)
    if not rows:
        return None
    (row,) = rows
    return StoredEvent(
        org_id=lane.org_id,
        seq=seq,
        **{name: row[name] for name in ("event_id", "payload", "attempts", "agent_id", "now")},
        channel=channels[row["channel_type"]],
        target=connection_target(db, lane.org_id, row),
        is_disabled=row["disabled_at"] is not None,
        public_url=public_url.rstrip("/"),
    )


async def settle_event(db: Database, lane: EventLane, seq: int, error: str | None = None) -> None:
    """It is done; or, with an error, it failed for good."""
    status = "done" if error is None else "failed"
    await db.call("settle_channel_event", lane.org_id, seq, lane.claim, status, error and error[:MAX_ERROR])


async def postpone_event(db: Database, lane: EventLane, event: StoredEvent, error: str, least: float | None) -> bool:
    """Try it again later; False where it was given up."""
    if event.attempts > len(WAITS):
        await settle_event(db, lane, event.seq, f"given up after {event.attempts} tries: {error}")
        return False
    wait = timedelta(seconds=max(WAITS[event.attempts - 1], min(least or 0.0, WAITS[-1])))
    async with db.transaction(lane.org_id) as tx:
        await tx.rows(queries.retry_channel_event, event.seq, lane.claim, wait, error[:MAX_ERROR])
    return True


async def release_events(db: Database, lane: EventLane, seqs: Sequence[int]) -> None:
    """What was taken and not begun is free for others at once."""
    with contextlib.suppress(TimeoutError):
        async with db.transaction(lane.org_id) as tx:
            await tx.rows(queries.release_channel_events, list(seqs), lane.claim)


async def forget_events(db: Database) -> None:
    """Once an hour is enough."""
    await db.call("forget_channel_events", None, REMEMBERED, AT_A_TIME)
