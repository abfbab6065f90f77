"""What every channel must do while the other side refuses, is away, or takes the connection away: nothing is lost, nobody is flooded.

class TestTelegram(OutageSuite): ...  # beside what ChannelSuite asks for

Each look is a notifier of its own, so that nothing of this depends on what one process remembers.
"""

from __future__ import annotations

from datetime import timedelta

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.kernel.meters import Meters, metered
from cortex_plane.notify.model.notifications import Alert
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.identities import Delivery, DeliveryStatus
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from cortex_plane.worker.notifier import Notifier
from tests.channels.behaviour import (
    PUBLIC_URL,
    ChannelStage,
    ChannelSuite,
    Deploying,
    Failure,
    delivery_of,
    drain,
    enable_connections,
    link,
    step_of,
    steps_asked,
)
from tests.channels.postbox import Postbox, connect
from tests.fixtures.approvals import decide, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World
from tests.fixtures.workers import call

MINUTE = timedelta(minutes=1)
PAUSES = 2
"""How often the other side asks for one, while three messages wait: a message that lost its place would come last."""
MOST_TRIES = 30
"""In an hour without the other side, of two messages."""


class CountedSends(Meters):
    def __init__(self) -> None:
        self.results: list[str] = []
        """Of messages over the channel of the stage."""

    def delivered(self, channel: str, result: str) -> None:
        self.results.append(f"{channel} {result}")


class OutageSuite(ChannelSuite):
    """Bea has a second way over which everything works."""

    async def _asked_thrice(self, world: World) -> list[Approval]:
        calls = [call("deploy", plan={"step": f"number-{n}"}) for n in range(3)]
        _, asked = await waiting(world, Deploying(), *calls)
        assert len(asked) == 3
        return asked

    async def _second_way(
        self, world: World, admin: asyncpg.Connection, stage: ChannelStage, person: Person
    ) -> Postbox:
        box = Postbox("webhook" if stage.channel.channel_type == "email" else "email")
        await link(admin, world, await connect(world, box.channel_type), person, "second@example.com")
        return box

    async def _deliveries(self, world: World, stage: ChannelStage) -> list[Delivery]:
        page = await deliveries.list_deliveries(world.db, world.admin.actor, None, 20)
        return [delivery for delivery in page.items if delivery.channel_type == stage.channel.channel_type]

    async def _look(self, world: World, stage: ChannelStage, *others: Postbox) -> None:
        await drain(Notifier(world.db, [stage.channel, *others], PUBLIC_URL))

    @pytest.mark.proves("D.128", "D.826")
    async def test_storm_of_rate_limits_is_obeyed_and_costs_no_message_its_place(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        if stage.pause is None:
            pytest.skip("nobody asks for a pause on this channel")
        bea = await self._bea(strict, admin, stage)
        box = await self._second_way(strict, admin, stage, bea)
        asked = await self._asked_thrice(strict)
        clock = await Clock.install(admin, asked[0].requested_at + MINUTE)
        stage.fail(Failure.RATE_LIMITED, PAUSES)
        refused = f"{stage.channel.channel_type} retry"
        with metered(counted := CountedSends()):
            for number in range(1, PAUSES + 1):
                await self._look(strict, stage, box)
                assert counted.results.count(refused) == number
                await clock.advance(stage.pause * 0.9)
                await self._look(strict, stage, box)
                assert counted.results.count(refused) == number, "nothing is sent before the pause is over"
                assert len(box.received) == 3, "other connections go on"
                await clock.advance(stage.pause * 0.2)
            assert await stage.arrived() == []
            assert {(each.status, each.attempts) for each in await self._deliveries(strict, stage)} == {
                (DeliveryStatus.PENDING, 0)
            }
            await self._look(strict, stage, box)
        assert [step_of(message) for message in await stage.arrived()] == await steps_asked(admin, stage)
        assert {each.status for each in await self._deliveries(strict, stage)} == {DeliveryStatus.DELIVERED}

    @pytest.mark.proves("D.826")
    async def test_hour_without_the_vendor_tells_each_newest_state_once(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        bea = await self._bea(strict, admin, stage)
        decided = await self._asked(strict, to="production")
        await self._look(strict, stage)
        calls = [call("deploy", plan={"to": place}) for place in ("staging", "nowhere")]
        _, later = await waiting(strict, Deploying(), *calls, slug="later")
        waits, over = sorted(later, key=lambda request: "nowhere" in str(request.arguments))
        clock = await Clock.install(admin, over.requested_at + MINUTE)
        stage.fail(Failure.TEMPORARY, 1000)
        await decide(strict, over, by=bea)
        with metered(counted := CountedSends()):
            for number in range(12):
                if number == 6:
                    await decide(strict, decided, by=bea)
                await self._look(strict, stage)
                await clock.advance(5 * MINUTE)
        assert 2 <= len(counted.results) <= MOST_TRIES
        assert len(await stage.arrived()) == 1
        stage.fail(Failure.TEMPORARY, 0)
        for _ in range(10):  # the longest wait that so many failures lead to, and less than a day
            await clock.advance(timedelta(hours=2))
            await self._look(strict, stage)
        shown, *news = await stage.arrived()
        assert sorted((message.status, message.thread == shown.thread) for message in news) == [
            ("approved", True), ("pending", False)
        ]  # fmt: skip
        assert not any("nowhere" in message.text for message in news), "it was over before anybody was asked"
        for request in (decided, waits):
            assert (await delivery_of(strict, request)).status is DeliveryStatus.DELIVERED

    @pytest.mark.proves("D.827")
    async def test_what_the_vendor_takes_away_waits_until_it_is_repaired(
        self, strict: World, admin: asyncpg.Connection, stage: ChannelStage
    ) -> None:
        if stage.pause is None:
            pytest.skip("no connection of this channel can be taken away")
        await self._bea(strict, admin, stage)
        box = await self._second_way(strict, admin, stage, await strict.person(Role.OPERATOR, name="Op"))
        await self._asked_thrice(strict)
        stage.fail(Failure.REVOKED, 1000)
        await self._look(strict, stage, box)
        (lost,) = [
            each
            for each in (await connections.list_connections(strict.db, strict.admin.actor, None, 10)).items
            if each.disabled_at is not None
        ]
        assert lost.channel_type == stage.channel.channel_type
        (alert,) = [outgoing.content for outgoing in box.received]
        assert isinstance(alert, Alert)
        assert (alert.alert, alert.connection, alert.message) == (
            "connection_disabled",
            lost.name,
            lost.disabled_reason,
        )
        assert alert.url == f"{PUBLIC_URL}/channels/{lost.id}"
        assert {(each.status, each.attempts) for each in await self._deliveries(strict, stage)} == {
            (DeliveryStatus.PENDING, 0)
        }
        stage.fail(Failure.REVOKED, 0)
        await self._look(strict, stage, box)
        assert await stage.arrived() == [], "nothing is tried before somebody enables it"
        await enable_connections(strict)
        await self._look(strict, stage, box)
        assert [step_of(message) for message in await stage.arrived()] == await steps_asked(admin, stage)
        assert {each.status for each in await self._deliveries(strict, stage)} == {DeliveryStatus.DELIVERED}
        assert len(box.received) == 1
