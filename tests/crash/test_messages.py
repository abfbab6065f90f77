"""Two schedulers, two notifiers, and the database dies under them: each escalation and reminder once, each message once."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.notify.model.notifications import Card, Outgoing
from cortex_plane.policies.model.policies import OWNER_DECIDES, Approvers
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.notifier import Notifier
from cortex_plane.worker.scheduler import Scheduler, in_background
from tests.approvals.approval_racer import follow
from tests.channels.behaviour import PUBLIC_URL, Failure, link
from tests.channels.postbox import Postbox, connect
from tests.crash.test_deadlines import COUNT, Plane, _plane
from tests.crash.test_soak import patiently
from tests.crash.workers import DEADLINE
from tests.fixtures.clock import Clock
from tests.fixtures.servers import VAULT
from tests.storage.leases import Held, call, make_worker, queue

REQUESTS = 12
IN_THE_MIDDLE = 5
TERMS = replace(
    OWNER_DECIDES, timeout_seconds=36_000, reminder_seconds=3600, escalation_seconds=18_000,
    approvers=Approvers(roles=(Role.APPROVER,)), escalations=(Approvers(roles=(Role.OPERATOR,)),),
)  # fmt: skip
OPEN = "select count(*) from notification where status = 'pending'"
DUE = "update approval_request set {column} = {value}, next_action_at = plane_now() where id = any ($1)"
FORWARD = "update clock.hand set at = at + interval '61 seconds'"

Told = tuple[UUID, str, str]
"""A request, an address, an occasion."""


def told(message: Outgoing) -> Told:
    assert isinstance(message.content, Card)
    return message.content.approval_id, message.target.address, message.content.occasion.value


@dataclass
class Sending:
    """Two of each on pools of their own, and whatever they sent."""

    plane: Plane
    box: Postbox
    made: list[UUID]
    unsure: set[Told] = field(default_factory=set)
    """What was on its way when the database died, or whose answer was lost: it may come twice."""

    @asynccontextmanager
    async def running(self) -> AsyncIterator[list[Notifier]]:
        async with AsyncExitStack() as stack:
            notifiers = []
            for name in ("first", "second"):
                db = await patiently(lambda: Database.open(self.plane.url, max_size=5, vault=VAULT))
                stack.push_async_callback(db.close)
                notifiers.append(Notifier(db, [self.box], PUBLIC_URL, poll_seconds=0.05, name=name))
                await stack.enter_async_context(in_background(Scheduler(db, poll_seconds=0.05, name=name).run()))
                await stack.enter_async_context(in_background(notifiers[-1].run()))
            yield notifiers

    async def dies_after(self, messages: int) -> None:
        async with asyncio.timeout(DEADLINE):
            while len(self.box.received) < messages:  # noqa: ASYNC110 -- a notifier sends them
                await asyncio.sleep(0.002)
        await self.plane.restart()
        # One lane sends one message at a time: only its last one can be uncertain.
        self.unsure |= set({told(each)[1]: told(each) for each in self.box.received}.values())
        assert (await self.plane.admin.fetch(OPEN))[0][0] > 0, "the database must die in the middle of it"

    async def all_sent(self, notifiers: Sequence[Notifier]) -> None:
        """Time stands still, until nobody sends any more: then what a lost answer left taken is free again."""
        async with asyncio.timeout(DEADLINE):
            while (await self.plane.admin.fetch(OPEN))[0][0]:
                if not any(notifier._busy for notifier in notifiers):
                    await self.plane.admin.fetch(FORWARD)
                await asyncio.sleep(0.2)

    async def all_done(self, event: str) -> None:
        assert await self.plane.seen(event, REQUESTS) == REQUESTS


@asynccontextmanager
async def _asked() -> AsyncIterator[Sending]:
    """Requests of two approvers, whom nobody has told yet; an operator is asked with the first level."""
    async with _plane() as plane:
        world = plane.world
        connection = await asyncpg.connect(plane.admin_url)
        try:
            way = await connect(world)
            for name, role in (("Ann", Role.APPROVER), ("Bea", Role.APPROVER), ("Op", Role.OPERATOR)):
                person = await world.person(role, name=name)
                await link(connection, world, way, person, f"{name.lower()}@example.com")
            await queue(connection, world, REQUESTS)
            await Clock.install(connection, datetime.now(UTC) + timedelta(seconds=1))
            worker = await make_worker(world.db)
            made = [
                (await (await Held.claim(world.db, worker)).ask(call(input_hash=f"{n:064x}"), terms=TERMS))[0]
                for n in range(REQUESTS)
            ]
        finally:
            await connection.close()

        async def slowly(_: Outgoing) -> None:
            await asyncio.sleep(0.005)

        yield Sending(plane, Postbox(before=slowly), made)


async def _due(sending: Sending, column: str, value: str) -> None:
    await sending.plane.admin.fetch(DUE.format(column=column, value=value), sending.made)


@pytest.mark.proves("D.203", "D.204")
async def test_each_escalation_reminder_and_message_comes_once_while_the_database_dies() -> None:
    async with _asked() as sending:
        box, made = sending.box, sending.made
        box.failures = [Failure.LOST_ANSWER]
        async with sending.running() as notifiers:
            await sending.dies_after(IN_THE_MIDDLE)
            sending.unsure.add(told(box.received[0]))
            await sending.all_sent(notifiers)
        # Those who stop and start again in between lose nothing either.
        for column, value, event in (
            ("escalate_at", "array[plane_now()]", "escalated"), ("remind_at", "plane_now()", "reminded"),
        ):  # fmt: skip
            so_far = len(box.received)
            async with sending.running() as notifiers:
                await _due(sending, column, value)
                await sending.dies_after(so_far + IN_THE_MIDDLE)
                await sending.all_done(event)
                await sending.all_sent(notifiers)
        _came_once(sending)
        _came_in_order(sending)
        await _is_written_down_once(sending)
        await _a_mail_that_came_twice_works_once(sending)
        world = sending.plane.world
        assert (await patiently(lambda: audit.verify(world.db, world.admin.actor))).faults == []
    assert made


def _came_once(sending: Sending) -> None:
    came = Counter(map(told, sending.box.received))
    approvers, operator = ("ann@example.com", "bea@example.com"), "op@example.com"
    wanted = {(id, address, "requested") for id in sending.made for address in approvers}
    for occasion in ("escalated", "reminded"):
        wanted |= {(id, address, occasion) for id in sending.made for address in (*approvers, operator)}
    assert set(came) == wanted
    assert {each for each, times in came.items() if times > 1} <= sending.unsure
    assert max(came.values()) <= 2


def _came_in_order(sending: Sending) -> None:
    """What one person was asked came in the order in which it was asked, and each request's story from its beginning."""
    came = list(dict.fromkeys(map(told, sending.box.received)))
    for address in ("ann@example.com", "bea@example.com"):
        assert [id for id, to, occasion in came if (to, occasion) == (address, "requested")] == sending.made
    for id in sending.made:
        for address, story in (
            ("ann@example.com", ["requested", "escalated", "reminded"]), ("op@example.com", ["escalated", "reminded"]),
        ):  # fmt: skip
            assert [occasion for one, to, occasion in came if (one, to) == (id, address)] == story


async def _is_written_down_once(sending: Sending) -> None:
    admin, each_once = sending.plane.admin, dict.fromkeys(sending.made, 1)
    for event in ("escalated", "reminded"):
        rows = await admin.fetch(
            "select approval_id, count(*) from approval_event where event_type = $1 group by 1", event
        )
        assert {row[0]: row[1] for row in rows} == each_once
        assert (await admin.fetch("select count(*) from audit_entry where action = $1", f"approval_{event}"))[0][
            0
        ] == len(each_once)
    (mailed,) = await admin.fetch(
        "select count(*), count(distinct (approval_id, payload ->> 'member_id')) from approval_event"
        " where event_type = 'dispatched' and channel = 'email'"
    )
    assert tuple(mailed) == (3 * REQUESTS, 3 * REQUESTS), "a first message is told of once, however often it came"
    assert (await admin.fetch(COUNT, "undeliverable"))[0][0] == 0


async def _a_mail_that_came_twice_works_once(sending: Sending) -> None:
    """Its answer was lost, so it was sent again: two mails, two links, one decision."""
    lost = told(sending.box.received[0])
    mails = [each.content for each in sending.box.received if told(each) == lost]
    assert len(mails) == 2
    db = sending.plane.world.db
    results = []
    for mail in mails:
        assert isinstance(mail, Card)
        assert mail.approve_url is not None
        results.append(await follow(db, mail.approve_url))
    assert results == ["OK", "DUPLICATE"]
    (votes,) = await sending.plane.admin.fetch("select count(*) from approval_vote where approval_id = $1", lost[0])
    assert votes[0] == 1
