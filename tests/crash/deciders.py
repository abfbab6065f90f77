"""What a process of its own does before it dies: each is one verb of the plane."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from cortex_plane.approvals.model.approvals import ApprovalDecision, Channel, Choice, DelegationDraft, StandingDraft
from cortex_plane.approvals.model.credentials import TokenDecision
from cortex_plane.approvals.verbs import approvals, credentials, decisions
from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.whatsapp import WhatsAppChannel
from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import Cancellation
from cortex_plane.jobs.model.journal import SignalDraft
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.ids import IdempotencyKey, new_id
from cortex_plane.notify.model.notifications import Card, Outgoing, Sent
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.tenancy.model.access import scheduler_actor
from cortex_plane.tenancy.verbs import frame
from cortex_plane.worker.channel_listener import ChannelListener
from cortex_plane.worker.notifier import Notifier
from tests.approvals.approval_racer import follow


async def decide(db: Database, given: dict[str, Any]) -> None:
    actor = await frame.authenticate_key(db, given["secret"])
    decision = ApprovalDecision(
        decision=Choice(given["choice"]),
        version=given["version"],
        input_hash=given["input_hash"],
        arguments=given.get("arguments"),
        answer=given.get("answer"),
        reason="because",
        standing=StandingDraft(calls=given["standing"]) if given.get("standing") else None,
    )
    once = IdempotencyKey(key=given["key"], fingerprint=b"the same") if given.get("key") else None
    await decisions.decide(db, actor, UUID(given["approval"]), decision, Channel.API, once)


async def decide_by_token(db: Database, given: dict[str, Any]) -> None:
    await credentials.decide_by_token(db, TokenDecision(token=given["token"], decision=Choice(given["choice"])))


async def decide_by_link(db: Database, given: dict[str, Any]) -> None:
    await follow(db, given["link"])


async def delegate(db: Database, given: dict[str, Any]) -> None:
    actor = await frame.authenticate_key(db, given["secret"])
    await approvals.delegate(db, actor, UUID(given["approval"]), DelegationDraft(to=UUID(given["to"])))


async def act_when_due(db: Database, given: dict[str, Any]) -> None:
    actor = scheduler_actor(UUID(given["org"]), new_id(), "doomed")
    await decisions.act_when_due(db, actor, UUID(given["approval"]))


async def cancel(db: Database, given: dict[str, Any]) -> None:
    actor = await frame.authenticate_key(db, given["secret"])
    await steering.cancel(db, actor, UUID(given["job"]), Cancellation())


async def send_signal(db: Database, given: dict[str, Any]) -> None:
    actor = await frame.authenticate_key(db, given["secret"])
    draft = SignalDraft(name=given["name"], key=given["key"], payload=given["payload"])
    once = IdempotencyKey(key=given["once"], fingerprint=b"the same") if given.get("once") else None
    await steering.send_signal(db, actor, draft, once, at_once=given.get("at_once", 1000))


class FileChannel:
    """Writes a line for each message; what was written stays, whoever dies."""

    channel_type = "email"

    def __init__(self, path: Path) -> None:
        self._path = path

    def concerns(self, card: Card, shown: Mapping[str, Any]) -> bool:
        return card.status != shown.get("status")

    async def send(self, outgoing: Outgoing) -> Sent:
        card = outgoing.content
        assert isinstance(card, Card)
        with self._path.open("a") as file:
            file.write(f"{outgoing.target.address} {outgoing.id} {outgoing.version} {card.status} {card.action}\n")
            file.flush()
            os.fsync(file.fileno())
        return Sent(message_ref=str(outgoing.id), shown={"status": card.status.value})


async def deliver(db: Database, given: dict[str, Any]) -> None:
    notifier = Notifier(db, [FileChannel(Path(given["file"]))], "https://plane.example")
    while await notifier.turn():
        pass


VENDORS: Mapping[str, Callable[[VendorClient], InteractiveChannel]] = {
    "telegram": TelegramChannel,
    "slack": SlackChannel,
    "discord": DiscordChannel,
    "whatsapp": WhatsAppChannel,
    "github": GitHubChannel,
    "gitlab": GitLabChannel,
}


async def notify(db: Database, given: dict[str, Any]) -> None:
    """Send all that is due over one channel, whose vendor is on this machine."""
    client = VendorClient(Allowed.parse("127.0.0.1"))
    notifier = Notifier(db, [VENDORS[given["kind"]](client)], "https://plane.example")
    while await notifier.turn():
        pass
    await client.close()


async def listen(db: Database, given: dict[str, Any]) -> None:
    """Listen to the connections of one channel until the end; a lease that was lost is noticed at once."""
    client = VendorClient(Allowed.parse("127.0.0.1"))
    channels = {given["kind"]: VENDORS[given["kind"]](client)}
    await ChannelListener(db, channels, wake=lambda: None, beat_seconds=0.05, pauses=(0.05,)).run()
