"""What every channel with conversations must do with replies that take several messages, and what those must on which people see an answer
grow (``traits.stream_seconds``). A channel's own tests inherit the suites, with the stage of its `InteractiveSuite`:

class TestTelegramStreaming(StreamingSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[InteractiveStage]: ...
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from structlog.testing import capture_logs

from cortex_plane.agents.model.completions import CallRequest, ModelError, ModelRequest, ModelUsage, Response, TextChunk
from cortex_plane.jobs.model.jobs import Cancellation, JobStatus
from cortex_plane.jobs.verbs import steering
from cortex_plane.notify.model.notifications import Outgoing, Sent
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from cortex_plane.sessions.verbs import events
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker import model_calls
from cortex_plane.worker.models.backends import Backends
from cortex_plane.worker.notifier import Notifier, ReplyStreamer
from tests.channels.behaviour import PUBLIC_URL, Deploying, Failure, drain, link
from tests.channels.interactive_behaviour import InteractiveStage, Plane, SeenMessage
from tests.channels.postbox import Postbox
from tests.fixtures.clock import Clock
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import Died, expire, leased, make_agent, until, working

USAGE = ModelUsage(prompt_tokens=1, completion_tokens=1)
BEGINNING = "The answer begins here, and it is **long enough** to be shown"
END = " while the rest of it is written."
ALLOW = 'policies: [{name: rest, target: "*", effect: allow}]'


class DictatedModel:
    """A model that says what a test dictates: pieces of text, then a response or an error."""

    def __init__(self) -> None:
        self._pieces: asyncio.Queue[str | tuple[CallRequest, ...] | ModelError] = asyncio.Queue()

    def say(self, *texts: str) -> None:
        for text in texts:
            self._pieces.put_nowait(text)

    def end(self, *calls: CallRequest) -> None:
        self._pieces.put_nowait(calls)

    def fail(self, error: ModelError) -> None:
        self._pieces.put_nowait(error)

    async def stream(self, request: ModelRequest) -> AsyncIterator[TextChunk | Response]:
        texts: list[str] = []
        while True:
            piece = await self._pieces.get()
            if isinstance(piece, ModelError):
                raise piece
            if isinstance(piece, tuple):
                yield Response(text="".join(texts) or None, calls=piece, usage=USAGE)
                return
            texts.append(piece)
            yield TextChunk(piece)


@dataclass
class UnpacedChannel:
    """The channel without the pauses between its messages. It dies in the send of this number: before it, or once the vendor has it."""

    channel: InteractiveChannel
    dies_in: int = 0
    is_sent: bool = False
    sends: int = 0
    traits: Any = field(init=False)

    def __post_init__(self) -> None:
        self.traits = replace(self.channel.traits, chat_seconds=0.0, per_second=0.0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.channel, name)

    async def send(self, outgoing: Outgoing) -> Sent:
        self.sends += 1
        if self.sends == self.dies_in and not self.is_sent:
            raise Died
        receipt = await self.channel.send(outgoing)
        if self.sends == self.dies_in:
            raise Died
        return receipt


class ConversationStage:
    """Bea talks with an agent over the channel of the stage."""

    def __init__(self, world: World, admin: asyncpg.Connection, stage: InteractiveStage, connection_id: UUID) -> None:
        self.world, self.admin, self.stage = world, admin, stage
        self.plane = Plane(world, stage, connection_id)
        self.model = DictatedModel()
        self.app = Deploying().app
        self.notifier = self.make_notifier()
        self._traits = replace(stage.channel.traits, stream_seconds=2.0, streams_per_second=1000.0)

    def make_notifier(self, dies_in: int = 0, *, is_sent: bool = False, more: tuple[Postbox, ...] = ()) -> Notifier:
        channel = UnpacedChannel(self.stage.channel, dies_in, is_sent)
        return Notifier(self.world.db, [channel, *more], PUBLIC_URL)

    async def write(self, text: str, *, private: bool = True) -> UUID:
        """Bea writes; returns the job that answers."""
        await self.plane.store(await self.stage.write("bea", text, private=private))
        await self.plane.handle()
        id: UUID = await self.admin.fetchval(
            "select id from job where kind = 'conversation' order by created_at desc, id desc limit 1"
        )
        return id

    def working(self, **more: Any) -> Any:
        return working(self.world.db, self.app, backends=Backends({"scripted": self.model}), **more)

    async def written(self, text: str) -> None:
        """Until the chunks of the answer have all of this text."""
        async with asyncio.timeout(20):
            query = "select string_agg(text, '' order by seq) from text_chunk"
            while await self.admin.fetchval(query) != text:  # noqa: ASYNC110 -- only the database knows
                await asyncio.sleep(0.005)

    async def advance(self) -> int:
        """A streamer looks that has seen nothing yet; returns how many messages are due."""
        return await self.make_streamer().turn()

    def make_streamer(self) -> ReplyStreamer:
        channel: Any = _WithTraits(self.stage.channel.channel_type, self._traits)
        return ReplyStreamer(self.world.db, [channel])

    async def look(self) -> list[str]:
        """A streamer looks, and what is due is sent: the texts that the chat shows now."""
        await self.advance()
        await drain(self.notifier)
        return await self.texts()

    async def texts(self) -> list[str]:
        return [message.text.strip() for message in await self.messages()]

    async def messages(self) -> list[SeenMessage]:
        return await self.stage.messages()


@dataclass(frozen=True)
class _WithTraits:
    channel_type: str
    traits: Any


@asynccontextmanager
async def conversing(
    world: World, admin: asyncpg.Connection, stage: InteractiveStage
) -> AsyncIterator[ConversationStage]:
    bea = await world.person(Role.APPROVER, name="Bea")
    connection_id = await stage.connect(world)
    await link(admin, world, connection_id, bea, stage.address("bea"))
    await apply_policies(world.db, world.admin.actor, ALLOW)
    agent = await make_agent(world, [], slug="talker", limits={"retry_base_seconds": 60})
    await admin.execute("update channel_connection set agent_id = $2 where id = $1", connection_id, agent.id)
    yield ConversationStage(world, admin, stage, connection_id)


class LongReplySuite:
    async def test_killed_between_parts_repeats_none_and_killed_in_one_repeats_that_one(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        """A process dies before the second part. The vendor refuses that one once, and the next process dies once it has the third."""
        async with conversing(strict, admin, stage) as talk:
            limit = stage.channel.traits.text_limit
            paragraphs = [f"Part {n} " + "word " * (limit * 11 // 100) for n in range(5)]
            talk.model.say("\n\n".join(paragraphs))
            talk.model.end()
            job = await talk.write("Tell me all")
            async with talk.working():
                await until(strict, job, JobStatus.COMPLETED)
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            with capture_logs():  # the stack of who died has the whole text
                await drain(talk.make_notifier(2))
                assert len(await talk.messages()) == 1
                await clock.advance(timedelta(seconds=61))
                stage.fail(Failure.TEMPORARY, 1)
                await drain(talk.make_notifier())
                await clock.advance(timedelta(minutes=5))
                await drain(talk.make_notifier(2, is_sent=True))
                assert len(await talk.messages()) == 3
                await clock.advance(timedelta(seconds=61))
                await drain(talk.make_notifier())
            texts = await talk.texts()
            heads = [text.split(" word")[0][-6:] for text in texts]
            expected = [f"Part {n}" for n in range(5)]
            repeats = getattr(stage, "redelivers", True)
            assert heads == (["Part 0", "Part 1", "Part 2", "Part 2", "Part 3", "Part 4"] if repeats else expected)
            assert await admin.fetchval("select status from notification where kind = 'reply'") == "delivered"


class StreamingSuite:
    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(model_calls, "FLUSH_SECONDS", 0.01)

    async def test_answer_grows_in_one_message_until_it_is_whole(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            job = await talk.write("Tell me")
            async with talk.working():
                talk.model.say("Well")
                await talk.written("Well")
                assert await talk.look() == [], "too little to be worth a message"
                talk.model.say(BEGINNING)
                await talk.written("Well" + BEGINNING)
                (shown,) = await talk.look()
                assert shown.replace("**", "") == f"Well{BEGINNING.replace('**', '')} …"
                talk.model.say(" and")
                await talk.written(f"Well{BEGINNING} and")
                assert await talk.look() == [shown], "not before its time"
                await clock.advance(timedelta(seconds=2))
                (shown,) = await talk.look()
                assert shown.endswith("to be shown and …")
                talk.model.say("x" * (stage.channel.traits.text_limit + 100))
                talk.model.end()
                await until(world, job, JobStatus.COMPLETED)
            await drain(talk.notifier)
            first, *rest = await talk.texts()
            assert first.replace("**", "").startswith(f"Well{BEGINNING.replace('**', '')} and")
            assert len(rest) in (1, 2)
            assert "…" not in "".join([first, *rest])
            rows = await admin.fetch("select status, desired_version = rendered_version from notification")
            assert [tuple(row) for row in rows] == [("delivered", True)]
            await clock.advance(timedelta(seconds=2))
            assert await talk.advance() == 0
            assert await admin.fetchval("select count(*) from session_head where stream_id is not null") == 0

    async def test_what_is_said_before_a_call_gives_way_to_the_request_and_the_answer(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        ask = 'policies: [{name: ask, target: "*", effect: requires_approval, approvers: {roles: [admin]}}]'
        async with conversing(strict, admin, stage) as talk:
            await apply_policies(strict.db, strict.admin.actor, ask)
            job = await talk.write("Deploy it")
            async with talk.working():
                talk.model.say(BEGINNING)
                await talk.written(BEGINNING)
                assert len(await talk.look()) == 1
                talk.model.end(CallRequest(id="c1", name="deploy", arguments={"plan": {"to": "production"}}))
                await until(strict, job, JobStatus.WAITING_FOR_APPROVAL)
            await drain(talk.notifier)
            assert await talk.texts() == ["I need an approval before I go on."]

    async def test_worker_that_dies_leaves_its_half_to_the_next_one(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            job = await talk.write("Tell me")
            lost, assignment = await leased(world.db, talk.app)
            assert await events.append_chunks(world.db, assignment, lost.id, 0, [BEGINNING])
            assert len(await talk.look()) == 1
            await expire(world.db, lost)
            talk.model.say("Another answer")
            async with talk.working():
                await talk.written("Another answer")
                assert not await events.append_chunks(world.db, assignment, lost.id, 0, ["too late"])
                await clock.advance(timedelta(seconds=2))
                assert await talk.look() == ["Another answer …"]
                talk.model.say(".")
                talk.model.end()
                await until(world, job, JobStatus.COMPLETED)
            await drain(talk.notifier)
            assert await talk.texts() == ["Another answer."]

    async def test_answer_that_breaks_off_says_so_and_failed_or_cancelled_jobs_end_it(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            for ending in ("failed", "cancelled"):
                await clock.advance(timedelta(seconds=2))
                job = await talk.write(f"{ending}, please")
                async with talk.working():
                    talk.model.say(BEGINNING)
                    await talk.written(BEGINNING)
                    count = len(await talk.look())
                    talk.model.fail(ModelError("overloaded", status=503 if ending == "cancelled" else 400))
                    await until(world, job, JobStatus.FAILED, JobStatus.RETRY)
                if ending == "cancelled":
                    async with asyncio.timeout(10):
                        while await admin.fetchval("select count(*) from text_chunk"):  # noqa: ASYNC110
                            await asyncio.sleep(0.005)
                    await clock.advance(timedelta(seconds=2))
                    assert (await talk.look())[-1].startswith("The agent was interrupted.")
                    await steering.cancel(world.db, world.admin.actor, job, Cancellation())
                    await clock.advance(timedelta(seconds=2))
                texts = await talk.look()
                assert texts[-1].startswith(
                    "The agent stopped because" if ending == "failed" else "The agent was stopped before"
                )
                assert len(texts) == count

    async def test_vendor_that_refuses_an_edit_gets_the_whole_answer_and_no_more_halves(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            job = await talk.write("Tell me")
            async with talk.working():
                talk.model.say(BEGINNING)
                await talk.written(BEGINNING)
                first = await talk.look()
                stage.fail(Failure.TEMPORARY, 1)
                talk.model.say(END)
                await talk.written(BEGINNING + END)
                await clock.advance(timedelta(seconds=2))
                assert await talk.look() == first
                await talk.look()
                assert await admin.fetchval("select data -> 'stream' ? 'stopped' from notification")
                await clock.advance(timedelta(minutes=10))
                second = await talk.look()
                talk.model.say(" More.")
                await talk.written(f"{BEGINNING}{END} More.")
                await clock.advance(timedelta(minutes=10))
                assert await talk.look() == second, "it streams no more"
                talk.model.end()
                await until(world, job, JobStatus.COMPLETED)
            await clock.advance(timedelta(minutes=10))
            await drain(talk.notifier)
            (text,) = await talk.texts()
            assert text.endswith("is written. More.")

    async def test_answer_goes_where_its_person_wrote_last_and_the_half_says_so(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        """Bea goes on in another chat: the half is ended, and the answer that she gets is whole."""
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            job = await talk.write("Tell me")
            async with talk.working():
                talk.model.say(BEGINNING)
                await talk.written(BEGINNING)
                assert len(await talk.look()) == 1
                await talk.plane.store(await stage.write("bea", "And here?", private=False))
                await talk.plane.handle()
                await clock.advance(timedelta(seconds=10))
                # One look ends the half, the next one begins anew where she is now.
                await talk.look()
                texts = await talk.look()
                assert texts[0].startswith("You wrote in another place meanwhile.")
                assert len(texts) == 2
                talk.model.end()
                talk.model.say("The second answer")
                talk.model.end()
                await until(world, job, JobStatus.COMPLETED)
            await drain(talk.notifier)
            first, second, third = await talk.messages()
            assert first.text.strip().startswith("You wrote in another place meanwhile.")
            assert second.text.strip().replace("**", "") == BEGINNING.replace("**", "")
            assert third.text.strip() == "The second answer"
            assert first.chat != second.chat == third.chat

    async def test_notifier_that_dies_leaves_one_message(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        """After an edit. After its first message, nobody knows of that one where the vendor cannot tell."""
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            for is_first in (False, True):
                await clock.advance(timedelta(seconds=2))
                count = len(await talk.messages())
                job = await talk.write("Tell me")
                async with talk.working():
                    talk.model.say(BEGINNING)
                    await talk.written(BEGINNING)
                    if not is_first:
                        await talk.look()
                        talk.model.say(END)
                        await talk.written(BEGINNING + END)
                        await clock.advance(timedelta(seconds=2))
                    assert await talk.advance() == 1
                    with capture_logs():
                        await drain(talk.make_notifier(1, is_sent=True))
                    if is_first:
                        talk.model.say(END)
                    talk.model.end()
                    await until(world, job, JobStatus.COMPLETED)
                await drain(talk.notifier)
                assert (await talk.texts())[-1].endswith("…"), "the dead one has it for a minute"
                await clock.advance(timedelta(seconds=61))
                await drain(talk.notifier)
                texts = (await talk.texts())[count:]
                assert texts[-1].replace("**", "") == f"{BEGINNING}{END}".replace("**", "")
                assert len(texts) == (2 if is_first and getattr(stage, "redelivers", True) else 1)
