"""Events as verbs read them, and the one reader that serves everybody who watches."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.jobs.model.jobs import Cancellation, JobDraft, JobStatus
from cortex_plane.jobs.verbs import jobs, steering
from cortex_plane.kernel.errors import Forbidden, NotFound
from cortex_plane.proof import store as proof_store
from cortex_plane.sessions import store as sessions_store
from cortex_plane.sessions.model.sessions import MessageDraft
from cortex_plane.sessions.store import queries
from cortex_plane.sessions.verbs import events, sessions
from cortex_plane.sessions.verbs.events import EventFeed, Subscription
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World


async def append(world: World, session_id: UUID, kind: str = "status", count: int = 1, **data: str) -> None:
    async with world.db.transaction(world.org_id) as tx:
        await proof_store.append_to_session(tx, session_id, [], [(kind, None, data)] * count)


async def until(happened: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while True:
            if happened():
                return
            await asyncio.sleep(0.01)


async def test_a_session_is_read_from_any_number_on(world: World) -> None:
    delivery = await world.say("Hello")
    await sessions.post_message(world.db, world.admin.actor, delivery.session_id, MessageDraft(text="x" * 9000))
    read = await events.of_session(world.db, world.admin.actor, delivery.session_id, 0)
    assert [(e.seq, e.type) for e in read.events] == [(1, "message"), (2, "status"), (3, "message")]
    assert (read.latest, read.more, read.over) == (3, False, None)
    assert read.events[0].data == {"seq": 1, "role": "user", "text": "Hello"}
    assert read.events[2].data == {"seq": 2, "role": "user", "text": "x" * 8000, "truncated": True}
    page = await events.of_session(world.db, world.admin.actor, delivery.session_id, 1, 1)
    assert ([e.seq for e in page.events], page.more) == ([2], True)
    beyond = await events.of_session(world.db, world.admin.actor, delivery.session_id, 999)
    assert (beyond.events, beyond.latest) == ([], 3)


async def test_a_job_is_read_apart_from_its_session(world: World) -> None:
    first = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    draft = JobDraft(agent=world.agent.slug, session_id=first.session_id)
    second = await jobs.submit(world.db, world.admin.actor, draft)
    await steering.cancel(world.db, world.admin.actor, first.id, Cancellation())
    read = await events.of_job(world.db, world.admin.actor, first.id, 0)
    assert [(e.seq, e.data["status"]) for e in read.events] == [(1, "PENDING"), (3, "CANCELLED")]
    assert read.over is JobStatus.CANCELLED
    other = await events.of_job(world.db, world.admin.actor, second.id, 0)
    assert ([e.seq for e in other.events], other.over) == ([2], None)
    whole = await events.of_jobs_session(world.db, world.admin.actor, first.id, 0)
    assert ([e.seq for e in whole.events], whole.over) == ([1, 2, 3], None)


async def test_events_are_for_those_who_see_the_session(world: World, other: World) -> None:
    job = await jobs.submit(world.db, world.admin.actor, JobDraft(agent=world.agent.slug))
    stranger = await world.person(Role.MEMBER)
    for person in (stranger, other.admin):
        with pytest.raises(NotFound):
            await events.of_session(world.db, person.actor, job.session_id, 0)
        for read in (events.of_job, events.of_jobs_session):
            with pytest.raises(NotFound):
                await read(world.db, person.actor, job.id, 0)
    nobody = await world.service_with(Role.GUEST)
    with pytest.raises((NotFound, Forbidden)):
        await events.of_job(world.db, nobody.actor, job.id, 0)


@pytest.mark.proves("D.67")
async def test_readers_share_one_look_and_get_the_same(world: World, other: World) -> None:
    one, two = (await world.say("a", "u-1")).session_id, (await world.say("b", "u-2")).session_id
    theirs = (await other.say("c")).session_id
    feed = EventFeed(world.db, poll_seconds=0.02)
    with (
        feed.watch(world.org_id, one, 2) as first,
        feed.watch(world.org_id, one, 2) as second,
        feed.watch(world.org_id, two, 2) as third,
        feed.watch(other.org_id, theirs, 2) as fourth,
    ):
        await append(world, one)
        await append(world, two, count=2)
        assert [e.seq for e in await first.take(10)] == [e.seq for e in await second.take(10)] == [3]
        assert [e.seq for e in await third.take(10)] == [3, 4]
        assert await fourth.take(0.1) == []
        await append(other, theirs)
        assert [e.seq for e in await fourth.take(10)] == [3]
    assert feed._sessions == {}


async def test_a_session_of_another_org_shows_nothing(world: World, other: World) -> None:
    session = (await world.say()).session_id
    feed = EventFeed(world.db, poll_seconds=0.02)
    with feed.watch(other.org_id, session, 0) as watch:
        await until(lambda: feed.looks > 2)
        assert await watch.take(0) == []


async def test_the_reader_rests_when_nobody_watches_and_comes_back(world: World) -> None:
    session = (await world.say()).session_id
    feed = EventFeed(world.db, poll_seconds=0.01)
    with feed.watch(world.org_id, session, 2):
        await until(lambda: feed.looks > 0)
    await until(lambda: feed._reader is not None and feed._reader.done())
    looked = feed.looks
    await append(world, session)
    with feed.watch(world.org_id, session, 2) as watch:
        assert [e.seq for e in await watch.take(10)] == [3]
        assert feed.looks > looked


async def test_what_a_slow_reader_missed_is_not_kept_for_it(monkeypatch: pytest.MonkeyPatch, world: World) -> None:
    monkeypatch.setattr(events, "QUEUE", 3)
    session = (await world.say()).session_id
    feed = EventFeed(world.db, poll_seconds=0.01)
    with feed.watch(world.org_id, session, 2) as slow, feed.watch(world.org_id, session, 2) as quick:
        await append(world, session, count=3)
        assert len(await quick.take(10)) == 3
        await append(world, session)
        assert [e.seq for e in await quick.take(10)] == [6]
        await until(lambda: slow.overflowed)
        assert (await slow.take(10), len(slow._events)) == ([], 0)
        assert not quick.overflowed


async def test_closing_ends_every_reader_and_every_later_one(world: World) -> None:
    session = (await world.say()).session_id
    feed = EventFeed(world.db)
    with feed.watch(world.org_id, session, 2) as watch, feed.approvals(world.org_id) as inbox:
        taking = [asyncio.create_task(each.take(60)) for each in (watch, inbox)]
        await asyncio.sleep(0)
        feed.close()
        assert await asyncio.wait_for(asyncio.gather(*taking), 5) == [[], []]
        assert (watch.closed, inbox.closed) == (True, True)
    with feed.watch(world.org_id, session, 2) as late:
        assert late.closed
        assert await late.take(60) == []


@pytest.mark.proves("D.67")
async def test_an_inbox_hears_of_approvals_anywhere_in_its_org(world: World, other: World) -> None:
    one, two = (await world.say("a", "u-1")).session_id, (await world.say("b", "u-2")).session_id
    theirs = (await other.say("c")).session_id
    feed = EventFeed(world.db, poll_seconds=0.02)
    with feed.approvals(world.org_id) as inbox:
        await append(world, one, "approval_requested", approval_id="1")
        assert [e.data for e in await inbox.take(10)] == [{"approval_id": "1"}]
        await append(other, theirs, "approval_requested", approval_id="2")
        await append(world, one)
        await append(world, two, "approval_decided", approval_id="1")
        assert [e.type for e in await inbox.take(10)] == ["approval_decided"]
        await append(world, two, "effect_settled")
        assert [e.type for e in await inbox.take(10)] == ["effect_settled"]
        looked = feed.looks
        await until(lambda: feed.looks > looked + 2)
        assert await inbox.take(0) == [], "everything is told once"
    assert feed._inboxes == {}


async def test_an_inbox_hears_of_the_newest_also_of_too_many(world: World) -> None:
    session = (await world.say()).session_id
    for number in range(6):
        await append(world, session, "approval_requested", approval_id=str(number))
    async with world.db.transaction(world.org_id) as tx:
        lately = await sessions_store.approval_events(tx, 30.0, 4)
    assert [event.data["approval_id"] for _, event in lately] == ["2", "3", "4", "5"]


async def test_an_inbox_is_read_through_its_index(world: World, admin: asyncpg.Connection) -> None:
    session = (await world.say()).session_id
    await append(world, session, count=2000)
    await append(world, session, "approval_requested")
    await admin.execute("analyze")
    text = queries.approval_events
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows("set local plan_cache_mode = force_generic_plan")
        plan = "\n".join(row["QUERY PLAN"] for row in await tx.rows(f"explain {text}", 30.0, 100))
    assert re.search(r"Index Scan (?:Backward )?using event_\d+_\d+_org_id_created_at_idx", plan), plan


async def test_the_reader_outlives_an_outage(world: World, admin: asyncpg.Connection) -> None:
    """A table that is away for a moment stands for a database that is."""
    session = (await world.say()).session_id
    feed = EventFeed(world.db, poll_seconds=0.02)
    with feed.watch(world.org_id, session, 2) as watch:
        await append(world, session)
        assert [e.seq for e in await watch.take(10)] == [3]
        await admin.execute("alter table event rename to elsewhere")
        await admin.execute("update session_head set event_seq = event_seq where session_id = $1", session)
        looked = feed.looks
        await until(lambda: feed.looks > looked + 3)
        await admin.execute("alter table elsewhere rename to event")
        await append(world, session)
        assert [e.seq for e in await watch.take(10)] == [4]


async def test_a_subscription_waits_no_longer_than_it_is_told(world: World) -> None:
    assert await Subscription().take(0.01) == []
