"""What the tests of vendors share that hold deployments until the plane says whether they may go on."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cortex_plane.calls.verbs import calls
from cortex_plane.jobs.model.effects import CallStatus
from cortex_plane.notify.model.channels import ChannelTraits
from cortex_plane.notify.verbs import deliveries
from cortex_plane.tenancy.model.identities import Delivery, NotificationKind
from tests.channels.interactive_behaviour import Plane
from tests.fixtures.people import Person, World


def unpaced(traits: ChannelTraits) -> ChannelTraits:
    """The card and the verdict of a deployment need not keep a second apart."""
    return replace(traits, per_second=1000.0, chat_seconds=0.0)


@dataclass
class DeploymentStage:
    plane: Plane
    bea: Person
    """An approver."""

    @property
    def world(self) -> World:
        return self.plane.world

    async def go_on(self) -> None:
        """Everything that is due."""
        await self.plane.handle()
        await self.plane.send()

    async def verdict_delivery(self) -> Delivery:
        page = await deliveries.list_deliveries(self.world.db, self.world.admin.actor, None, 50)
        (only,) = [delivery for delivery in page.items if delivery.kind is NotificationKind.VERDICT]
        return only

    async def call_status(self) -> CallStatus:
        page = await calls.list_calls(self.world.db, self.world.admin.actor, None, 10)
        (only,) = page.items
        return only.status
