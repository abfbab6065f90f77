"""How the plane looks for answers that grow in their chats: what a look costs, and that it reaches all of them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from datetime import timedelta
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.verbs import reply_streams
from cortex_plane.worker import model_calls
from tests.channels.behaviour import drain
from tests.channels.streaming_behaviour import BEGINNING, conversing
from tests.channels.test_slack_behaviour import ROOM, SlackStage, slack_stage
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.workers import until

COPIES = 4


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[SlackStage]:
    async with slack_stage() as stage:
        yield stage


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_calls, "FLUSH_SECONDS", 0.01)


async def copy_session(admin: asyncpg.Connection, session_id: UUID) -> None:
    """Another session whose agent writes the same answer into the same chat."""
    session, job = str(new_id()), str(new_id())
    changes = {
        "session": {"id": session, "kind": "programmatic"},
        "session_head": {"session_id": session},
        "job": {"id": job, "session_id": session, "worker_id": str(new_id())},
        "text_chunk": {"job_id": job, "session_id": session},
    }
    async with admin.transaction():
        await admin.execute("set local session_replication_role = replica")
        for table, values in changes.items():
            columns = await admin.fetchval(
                "select string_agg(attname, ', ') from pg_attribute"
                " where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attgenerated = ''",
                table,
            )
            await admin.execute(
                f"insert into {table} ({columns}) select {columns} from ("
                f"  select (jsonb_populate_record(r, $2)).* from {table} r"
                f"  where r.{'id' if table == 'session' else 'session_id'} = $1) copy",
                session_id, json.dumps(values),
            )  # fmt: skip


async def head_locks(admin: asyncpg.Connection) -> list[str]:
    """What changes with every lock of a head, also after the lock is over."""
    return [row[0] for row in await admin.fetch("select xmax::text from session_head order by session_id")]


async def test_looks_reach_every_answer_and_lock_only_what_is_due(
    strict: World, admin: asyncpg.Connection, stage: SlackStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reply_streams, "MOST_STREAMS", 2)
    async with conversing(strict, admin, stage) as talk:
        clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
        await talk.write("Tell me")
        async with talk.working():
            talk.model.say("Well")
            await talk.written("Well")
            streamer = talk.make_streamer()
            assert await streamer.turn() == 0
            locks = await head_locks(admin)
            assert await streamer.turn() == 0
            assert await head_locks(admin) == locks, "too little to be worth a message, and looked at a moment ago"
            talk.model.say(BEGINNING)
            await talk.written("Well" + BEGINNING)
            session_id = await admin.fetchval("select session_id from text_chunk limit 1")
            for _ in range(COPIES):
                await copy_session(admin, session_id)
            streamer = talk.make_streamer()
            assert [await streamer.turn() for _ in range(3)] == [2, 2, 1]
            await drain(talk.notifier)
            assert len(await talk.messages()) == 1 + COPIES
            locks = await head_locks(admin)
            paces = {"slack": 2.0}
            assert await reply_streams.find_streams(strict.db, paces) == []
            assert await talk.advance() == 0
            assert await head_locks(admin) == locks, "sent a moment ago"
            await clock.advance(timedelta(seconds=2))
            streams = await reply_streams.find_streams(strict.db, paces)
            assert [(s.connection_streams, s.chat_streams) for s in streams] == [(1 + COPIES, 1 + COPIES)] * 2
            sessions = {stream.session_id for stream in streams}
            for _ in range(2):
                streams = await reply_streams.find_streams(strict.db, paces, streams[-1])
                sessions |= {stream.session_id for stream in streams}
            assert len(sessions) == 1 + COPIES, "a look goes on after the one before it, and then from the beginning"


async def test_answer_ends_in_its_thread_though_its_person_wrote_in_a_newer_one(
    strict: World, admin: asyncpg.Connection, stage: SlackStage
) -> None:
    """Each mention in a channel of Slack begins a thread of its own."""
    async with conversing(strict, admin, stage) as talk:
        clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
        job = await talk.write("Tell me", private=False)
        async with talk.working():
            talk.model.say(BEGINNING)
            await talk.written(BEGINNING)
            assert len(await talk.look()) == 1
            await talk.plane.store(await stage.write("bea", "And also this", private=False))
            await talk.plane.handle()
            await clock.advance(timedelta(seconds=2))
            (text,) = await talk.look()
            assert text.endswith("…")
            talk.model.end()
            talk.model.say("The second answer")
            talk.model.end()
            await until(strict, job, JobStatus.COMPLETED)
        await drain(talk.notifier)
        shown = [(m.visible.strip(), m.thread) for m in stage.vendor.messages(ROOM) if m.user != "U0BEA"]
        threads = [m.ts for m in stage.vendor.messages(ROOM) if m.user == "U0BEA"]
        assert shown == list(zip([BEGINNING.replace("**", ""), "The second answer"], threads, strict=True))


@pytest.mark.fresh_database
async def test_look_without_statistics_reads_no_session_that_shows_no_answer(
    world: World, admin: asyncpg.Connection
) -> None:
    insert = (
        "insert into session_head (org_id, session_id, stream_id) select gen_random_uuid(), gen_random_uuid(),"
        " case when n % 10000 = 0 then gen_random_uuid() end from generate_series(1, 30000) n"
    )
    async with admin.transaction():
        await admin.execute("set local session_replication_role = replica")
        await admin.execute(insert)
        await admin.fetch("select * from find_reply_streams(array['slack'], array[2.0], null, null, 500)")
        table = "from pg_stat_xact_user_tables where relname = 'session_head'"
        assert await admin.fetchval(f"select seq_tup_read {table}") == 0
        assert await admin.fetchval(f"select idx_tup_fetch {table}") < 20
