"""Webhooks pass what every channel must pass, over TLS and with names that resolve as the test wants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from datetime import timedelta
from uuid import UUID

import asyncpg
import orjson
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cortex_plane.channels.webhooks import WebhookChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs import webhooks
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from tests.channels.behaviour import Arrived, Failure
from tests.channels.outage_behaviour import OutageSuite
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.receivers import Got, Receiver, Reply, certified, receiving

HOST = "hooks.example"


class WebhookStage:
    redelivers = False
    """The other side knows a message by its `webhook-id`."""
    pause = timedelta(seconds=90)

    def __init__(self, receiver: Receiver, channel: WebhookChannel) -> None:
        self.channel = channel
        self._receiver = receiver
        self._secret = ""

    async def connect(self, world: World) -> UUID:
        url = f"https://{HOST}:{self._receiver.port}/cortex"
        draft = ConnectionDraft(channel_type="webhook", name="hook", url=url)
        made = await connections.create_connection(world.db, world.admin.actor, draft)
        assert made.secret is not None
        self._secret = made.secret
        return made.id

    def address(self, name: str) -> str:
        return f"corp-{name}"

    async def arrived(self) -> list[Arrived]:
        taken: dict[str, Got] = {}
        for got in self._receiver.got:
            assert got.is_signed(self._secret)
            if got.reply.broken or got.reply.status < 300:
                taken.setdefault(got.headers["webhook-id"], got)
        return [_arrived(got) for got in taken.values()]

    def refuse(self, headers: dict[str, str], times: int) -> None:
        self._receiver.replies += [Reply(503, headers)] * times

    def fail(self, how: Failure, times: int) -> None:
        if not times:
            self._receiver.replies.clear()
        match how:
            case Failure.REVOKED:
                self._receiver.replies += [Reply(410, body=b"gone")] * times
            case Failure.RATE_LIMITED:
                self._receiver.replies += [Reply(429, {"Retry-After": "90"})] * times
            case Failure.TEMPORARY:
                self._receiver.replies += [Reply(503, body=b"not now")] * times
            case Failure.HANG:
                self._receiver.replies += [Reply(599, silent=True)] * times
            case Failure.LOST_ANSWER:
                self._receiver.replies += [Reply(broken=True)] * times
            case _:
                raise NotImplementedError(how)


def _arrived(got: Got) -> Arrived:
    data = got.data
    return Arrived(
        address=data["recipient"]["external_user"],
        thread=data["notification_id"],
        status=data["status"],
        text=orjson.dumps(data).decode() + data["arguments"],
        urls=[data["url"]],
    )


class TestWebhooks(OutageSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[WebhookStage]:

        async def resolve(host: str, port: int) -> Sequence[str]:
            return ["127.0.0.1"]

        server, client = certified(HOST)
        async with receiving(server) as receiver:
            allowed = Allowed.parse("127.0.0.0/8")
            channel = WebhookChannel(allowed, resolver=resolve, ssl_context=client)
            yield WebhookStage(receiver, channel)

    @pytest.mark.proves("D.145")
    async def test_receiver_that_asks_for_pauses_for_days_is_disabled(
        self, strict: World, admin: asyncpg.Connection, stage: WebhookStage
    ) -> None:
        """A pause costs a message none of its tries, and still counts as a failure of its receiver. Its lane fails quietly after that."""
        await self._bea(strict, admin, stage)
        asked = await self._asked(strict)
        clock = await Clock.install(admin, asked.requested_at + timedelta(minutes=1))
        stage.refuse({"Retry-After": "43200"}, 100)
        with capture_logs() as logs:
            for _ in range(12):
                await self._look(strict, stage)
                await webhooks.keep(strict.db)
                await clock.advance(timedelta(hours=12, minutes=1))
        connection = (await connections.list_connections(strict.db, strict.admin.actor, None, 10)).items[0]
        assert connection.disabled_reason == "Nothing was delivered for 5 days."
        assert not [entry for entry in logs if entry["event"] == "lane failed"]
