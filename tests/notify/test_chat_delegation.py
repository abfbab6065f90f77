"""Handing a request on from a chat: as a reply to its message, or by the id that the message shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest_asyncio

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus
from cortex_plane.approvals.verbs import approvals
from cortex_plane.notify.model.channels import Button, ButtonAction
from cortex_plane.notify.verbs import channel_events, inbound
from cortex_plane.tenancy.model.orgs import Role
from tests.channels.behaviour import ASK, PUBLIC_URL, Deploying, delivery_of, link
from tests.channels.interactive_behaviour import Plane, SeenMessage
from tests.channels.plain_channel import KIND, PlainChannel, PlainStage, vendor
from tests.fixtures.approvals import shown, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.workers import call


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[PlainStage]:
    async with vendor() as place:
        stage = PlainStage(place, PlainChannel())
        yield stage
        await stage.channel.close()


async def asked(
    world: World, admin: asyncpg.Connection, stage: PlainStage
) -> tuple[Plane, Approval, SeenMessage, Person]:
    """A request that Bea has on the channel. Her colleague is Cyd Brown."""
    bea = await world.person(Role.APPROVER, Role.MEMBER, name="Bea")
    cyd = await world.person(Role.MEMBER, name="Cyd Brown")
    plane = Plane(world, stage, await stage.connect(world))
    await link(admin, world, plane.connection_id, bea, stage.address("bea"))
    await link(admin, world, plane.connection_id, cyd, stage.address("cyd"))
    await apply_policies(world.db, world.admin.actor, ASK)
    _, (approval,) = await waiting(world, Deploying(), call("deploy", plan={"to": "production"}))
    await plane.send()
    return plane, approval, (await stage.messages())[-1], cyd


async def reply(plane: Plane, stage: PlainStage, message: SeenMessage, text: str, **where: Any) -> str:
    await plane.take(stage.signed(stage.event("bea", "text", text=text, reply_to=message.ref, **where)))
    return (await stage.answers("bea"))[-1]


async def hops(world: World, approval: Approval) -> list[tuple[str, str | None]]:
    details = await approvals.get_approval(world.db, world.admin.actor, approval.id)
    return [(hop.to_member, hop.reason) for hop in details.delegations]


async def test_reply_to_a_request_hands_it_on_with_its_reason(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, approval, message, _ = await asked(strict, admin, stage)
    answer = await reply(plane, stage, message, "/delegate cyd brown she knows the servers")
    assert answer == "Cyd Brown decides about deploy instead of you now."
    assert await hops(strict, approval) == [("Cyd Brown", "she knows the servers")]
    card = (await stage.messages())[-1]
    assert card.chat == "dm-u-cyd"
    await plane.take(await stage.press("bea", message, "Approve"))
    assert (await shown(strict, approval.id)).status is ApprovalStatus.PENDING, "it is not hers any more"
    await plane.take(await stage.press("cyd", card, "Approve"))
    assert (await shown(strict, approval.id)).status is ApprovalStatus.APPROVED


async def test_word_without_a_slash_is_a_command_below_a_request_alone(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    """Slack takes no slash in threads."""
    plane, approval, message, _ = await asked(strict, admin, stage)
    await plane.take(await stage.write("bea", "delegate Cyd Brown"))
    assert await hops(strict, approval) == []
    assert await admin.fetchval("select text from message") == "delegate Cyd Brown", "these are words for the agent"
    await reply(plane, stage, message, "Delegate @Cyd Brown")
    assert await hops(strict, approval) == [("Cyd Brown", None)]


async def test_id_names_the_request_where_nothing_is_replied_to(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, approval, _, _ = await asked(strict, admin, stage)
    id = (await delivery_of(strict, approval)).id
    code = Button(action=ButtonAction.APPROVE, notification_id=id, version=1).short_id
    await plane.take(await stage.write("bea", "/delegate aaaaaaaa Cyd Brown"))
    assert "which request you mean" in (await stage.answers("bea"))[-1]
    await plane.take(await stage.write("bea", f"/delegate {code}"))
    assert "Name who is to decide" in (await stage.answers("bea"))[-1]
    assert await hops(strict, approval) == []
    await plane.take(await stage.write("bea", f"/delegate {code.upper()} Cyd Brown"))
    assert await hops(strict, approval) == [("Cyd Brown", None)]


async def test_card_of_somebody_else_is_not_found(strict: World, admin: asyncpg.Connection, stage: PlainStage) -> None:
    plane, approval, message, _ = await asked(strict, admin, stage)
    await plane.take(stage.signed(stage.event("cyd", "text", text="/delegate Bea", reply_to=message.ref)))
    assert "which request you mean" in (await stage.answers("cyd"))[-1]
    await plane.take(stage.signed(stage.event("eve", "text", text="/delegate Bea", reply_to=message.ref)))
    assert "do not know who you are" in (await stage.answers("eve"))[-1]
    assert await hops(strict, approval) == []


async def test_unknown_name_is_answered_with_those_who_could_in_private_alone(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, approval, message, _ = await asked(strict, admin, stage)
    answer = await reply(plane, stage, message, "/delegate Cydney")
    assert "Nobody who could take it is called Cydney." in answer
    assert "Cyd Brown" in answer
    answer = await reply(plane, stage, message, "/delegate Cydney", chat="room", private=False)
    assert "Cyd Brown" not in answer
    assert await hops(strict, approval) == []


async def test_two_of_the_same_name_are_told_apart_in_the_dashboard(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, approval, message, _ = await asked(strict, admin, stage)
    await strict.person(Role.MEMBER, name="Cyd Brown")
    answer = await reply(plane, stage, message, "/delegate Cyd Brown")
    assert f"2 people are called Cyd Brown. Choose one of them in the dashboard: {PUBLIC_URL}/approvals/" in answer
    assert await hops(strict, approval) == []


async def test_request_that_is_over_is_not_handed_on(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, approval, message, _ = await asked(strict, admin, stage)
    await plane.take(await stage.press("bea", message, "Approve"))
    await reply(plane, stage, message, "/delegate Cyd Brown")
    assert "Cyd Brown decides" not in (await stage.answers("bea"))[-1]
    assert await hops(strict, approval) == []


async def test_process_that_dies_after_delegating_answers_as_if_it_had_not(
    strict: World, admin: asyncpg.Connection, stage: PlainStage
) -> None:
    plane, approval, message, _ = await asked(strict, admin, stage)
    clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
    request = stage.signed(stage.event("bea", "text", text="/delegate Cyd Brown", reply_to=message.ref))
    await plane.store(request)
    (lane,) = await channel_events.claim_events(strict.db, [KIND], 5)
    event = await channel_events.begin_event(strict.db, plane.door.channels, PUBLIC_URL, lane, lane.seqs[0])
    assert event is not None
    await inbound.handle(strict.db, event)
    await clock.advance(channel_events.LEASE * 5)
    await plane.handle()
    assert await stage.answers("bea") == ["Cyd Brown decides about deploy instead of you now."] * 2
    assert await hops(strict, approval) == [("Cyd Brown", None)]
