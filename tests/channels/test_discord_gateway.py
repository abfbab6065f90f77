"""Discord's Gateway: what people write and press reaches the plane over a socket, once, whatever happens to the socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import asyncpg
import orjson
import pytest
import pytest_asyncio

from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.discord.gateway import INTENTS, gateway_address
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import CortexError
from cortex_plane.notify.model.channels import ButtonAction, ButtonPress, ChatMessage, InboundAnswer, InboundItem
from cortex_plane.notify.model.notifications import ChatReply, Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs import channel_events
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.channel_listener import ChannelListener
from tests.channels.behaviour import link
from tests.channels.door import card, open_door, outgoing, target
from tests.channels.interactive_behaviour import InteractiveSuite, Plane
from tests.channels.test_discord_behaviour import discord_stage
from tests.emulators.discord import BOT_TOKEN, DiscordEmulator, InteractionFailed, live_buttons, message_text
from tests.fixtures.people import World
from tests.fixtures.workers import turn

APPROVE, DENY = ButtonAction.APPROVE, ButtonAction.DENY


@pytest_asyncio.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator().serve() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[DiscordChannel]:
    made = DiscordChannel(VendorClient(Allowed.parse("127.0.0.1")), pause_seconds=(0.0, 0.01))
    yield made
    await made.close()


def at(discord: DiscordEmulator, **config: str) -> Target:
    more = {"bot_id": discord.bot_id, "mode": "gateway", **config}
    return target("", {"api_url": discord.url, **more}, {"bot_token": BOT_TOKEN})


class Inbox:
    """What was stored, once for each id, with the cursor after it."""

    def __init__(self, channel: DiscordChannel) -> None:
        self.channel = channel
        self.items: dict[str, InboundItem] = {}
        self.repeats = 0
        self.cursor: str | None = None
        self.failure: CortexError | None = None
        self._grew = asyncio.Event()

    async def deliver(self, items: Sequence[InboundItem], cursor: str | None) -> None:
        if items and self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure
        self.cursor = cursor or self.cursor
        for item in items:
            self.repeats += item.event_id in self.items
            self.items.setdefault(item.event_id, item)
        self._grew.set()

    @property
    def events(self) -> list[Any]:
        return [self.channel.read(orjson.loads(orjson.dumps(item.payload))) for item in self.items.values()]

    @property
    def texts(self) -> list[str]:
        return [event.text for event in self.events]

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not is_so():
                self._grew.clear()
                await self._grew.wait()

    async def hears(self, *texts: str) -> None:
        await self.until(lambda: len(self.items) >= len(texts))
        assert self.texts == list(texts)


@asynccontextmanager
async def listening(discord: DiscordEmulator, inbox: Inbox) -> AsyncIterator[asyncio.Task[None]]:
    """A process that listens, from the cursor of the inbox on, until it is killed."""
    before = len(discord.gateway.resumed), len(discord.gateway.identified)
    task = asyncio.create_task(inbox.channel.listen(at(discord), inbox.cursor, inbox.deliver))
    await discord.gateway.until(lambda: before != (len(discord.gateway.resumed), len(discord.gateway.identified)))
    yield task
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


class TestMessages:
    async def test_reads_what_is_written_to_the_bot_and_nothing_else(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, bea, bot = discord.user("ada"), discord.user("bea"), discord.bot_id
        room, inbox = discord.guild_channel("room"), Inbox(channel)
        async with listening(discord, inbox):
            hello = await discord.write(ada, "Hello <@9> :)", attachments=("plan.pdf",))
            await discord.write(ada, "among us", room)
            await discord.write(ada, "<@&7> everyone", room, mention_everyone=True)
            await discord.write(ada, "from a bot", author={**discord.users[ada], "bot": True})
            await discord.write(ada, "a program", webhook_id="7")
            await discord.write(ada, "pinned", type=6)
            asked = await discord.write(ada, f"<@!{bot}> ask <@{bea}> <:ok:77>", room, mentions=(bot, bea))
            await discord.write(bea, f"<@{bot}> /status", room, mentions=(bot,), reply_to=asked)
            await discord.write(ada, "/cortex new")
            await discord.write(ada, "/cortex ask Why?")
            await inbox.until(lambda: len(inbox.items) == 5)
        direct, mention, command, typed, words = inbox.events
        assert discord.gateway.identified[0]["intents"] == INTENTS, "no privileged intent"
        assert (direct.text, direct.sender.id, direct.sender.name) == ("Hello @9 :)", ada, "Ada")
        assert (direct.chat.id, direct.chat.is_private, direct.chat.thread) == (discord.direct_channel(ada), True, None)
        assert (direct.attachments, next(iter(inbox.items))) == (("plan.pdf",), hello["id"])
        assert (mention.text, mention.chat.id, mention.chat.is_private) == ("ask @Bea :ok:", room, False)
        assert mention.chat.thread == asked["id"], "the answer stands under it"
        assert (command.text, command.reply_to) == ("/status", f"{room}:{asked['id']}")
        assert (typed.text, words.text) == ("/new", "Why?")

    async def test_answers_stand_under_what_they_answer(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        room, inbox = discord.guild_channel("room"), Inbox(channel)
        async with listening(discord, inbox):
            await discord.write(discord.user("ada"), f"<@{discord.bot_id}> /pause", room, mentions=(discord.bot_id,))
            await inbox.hears("/pause")
        (event,) = inbox.events
        for _ in range(2):
            await channel.answer(at(discord), event, InboundAnswer(text="Paused, @everyone. /resume goes on."))
        (answer,) = discord.history(room)
        assert message_text(answer) == "Paused, @everyone. /cortex resume goes on."
        assert answer["message_reference"]["message_id"] == event.answer_to["message_id"]
        assert not answer["mention_everyone"]
        to = replace(at(discord), address=room)
        first = await channel.send(outgoing(to, ChatReply(agent="s", text="One", thread=event.chat.thread)))
        more = {"earlier": first.message_ref, "shown": first.shown, "version": 2}
        discord.written.clear()
        await channel.send(outgoing(to, ChatReply(agent="s", text="One, two", thread=event.chat.thread), **more))
        reply = discord.history(room)[-1]
        assert (reply["content"], reply["type"]) == ("One, two", 19)

    async def test_typing_is_shown_once_in_a_while(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        inbox = Inbox(channel)
        async with listening(discord, inbox):
            await discord.write(discord.user("ada"), "Hello")
            await inbox.hears("Hello")
        (event,) = inbox.events
        for _ in range(3):
            await channel.show_activity(at(discord), event)
        assert discord.typing == [event.chat.id]

    async def test_a_command_does_not_think_on_once_an_agent_has_it(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        inbox = Inbox(channel)
        await channel.identify(at(discord), None)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
            asked = await discord.command(discord.user("ada"), "ask", text="Hello")
            await inbox.hears("Hello")
        assert asked.shown == []
        await channel.show_activity(at(discord), inbox.events[0])
        assert asked.shown == ["The agent has it."]


class TestSessions:
    @pytest.mark.proves("D.840")
    async def test_another_process_resumes_and_misses_nothing(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        async with listening(discord, inbox):
            await discord.write(ada, "one")
            await inbox.hears("one")
        (first,) = discord.gateway.links
        await discord.gateway.until(lambda: first.close_code is not None)
        assert first.close_code == 4000, "the session goes on"
        await discord.write(ada, "two")
        async with listening(discord, inbox):
            await inbox.hears("one", "two")
            await discord.write(ada, "three")
            await inbox.hears("one", "two", "three")
        assert (discord.gateway.paths, inbox.repeats) == (["/gateway", "/resume"], 0)
        assert len(discord.gateway.identified) == 1

    async def test_what_could_not_be_stored_comes_again(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        async with listening(discord, inbox) as task:
            await discord.write(ada, "one")
            await inbox.hears("one")
            inbox.failure = TryAgain("The database is away.")
            await discord.write(ada, "two")
            await discord.write(ada, "three")
            with pytest.raises(TryAgain, match="database is away"):
                await task
        async with listening(discord, inbox):
            await inbox.hears("one", "two", "three")

    async def test_discord_asks_for_a_new_connection(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        async with listening(discord, inbox):
            await discord.write(ada, "one")
            await discord.gateway.ask_to_reconnect()
            await discord.write(ada, "two")
            await inbox.hears("one", "two")
            await discord.gateway.until(lambda: len(discord.gateway.resumed) == 1)

    async def test_a_session_that_is_forgotten_is_followed_by_a_new_one(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        async with listening(discord, inbox):
            await discord.write(ada, "one")
            await inbox.hears("one")
        discord.gateway.forget_sessions()
        await discord.write(ada, "lost")
        async with listening(discord, inbox):
            await discord.gateway.until(lambda: bool(discord.gateway.sessions))
            await discord.write(ada, "two")
            await inbox.hears("one", "two")
        assert (len(discord.gateway.resumed), len(discord.gateway.identified)) == (1, 2)

    async def test_a_session_may_be_resumed_a_little_later(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        inbox = Inbox(channel)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
            (one,) = discord.gateway.open_links
            await discord.gateway.refuse_session(one, can_resume=True)
            await discord.gateway.until(lambda: len(discord.gateway.resumed) == 1)
        assert len(discord.gateway.identified) == 1

    async def test_a_place_for_resuming_that_is_gone_is_no_end(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        inbox = Inbox(channel)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
        for url in ("ws://127.0.0.1:1/resume", "ws://10.0.0.1/resume", "ws://["):
            inbox.cursor = orjson.dumps({**orjson.loads(inbox.cursor or ""), "url": url}).decode()
            async with listening(discord, inbox):
                pass
        assert discord.gateway.paths == ["/gateway"] * 4
        assert len(discord.gateway.resumed) == 3

    async def test_another_server_gets_no_token_of_a_session(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        """A cursor names where to resume. After a change of `api_url` that is somebody else's."""
        inbox = Inbox(channel)
        inbox.cursor = orjson.dumps({"session": "s", "seq": 7, "url": discord.gateway.url, "api": "https://a"}).decode()
        async with listening(discord, inbox):
            pass
        assert (len(discord.gateway.resumed), len(discord.gateway.identified)) == (0, 1)

    async def test_a_count_goes_on_without_messages_for_the_bot(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        discord.gateway.heartbeat_ms, inbox = 10, Inbox(channel)
        room = discord.guild_channel("room")
        async with listening(discord, inbox):
            for n in range(3):
                await discord.write(discord.user("ada"), f"{n}", room)
            await inbox.until(lambda: orjson.loads(inbox.cursor or "{}").get("seq") == 4)
        assert inbox.items == {}

    async def test_a_heartbeat_is_sent_when_discord_asks_for_one(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        inbox = Inbox(channel)
        async with listening(discord, inbox):
            await discord.write(discord.user("ada"), "one")
            await inbox.hears("one")
            (link,) = discord.gateway.open_links
            await link.send({"op": 1, "d": None, "s": None, "t": None})
            await discord.gateway.until(lambda: link.heartbeats == [2])

    async def test_a_connection_that_does_not_answer_heartbeats_is_left(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        discord.gateway.heartbeat_ms, discord.gateway.answers_heartbeats = 10, False
        ada, inbox = discord.user("ada"), Inbox(channel)
        async with listening(discord, inbox) as task:
            with pytest.raises(TryAgain, match="heartbeats"):
                async with asyncio.timeout(20):
                    await task
        (zombie,) = discord.gateway.links
        await discord.gateway.until(lambda: zombie.close_code is not None)
        assert (len(zombie.heartbeats), zombie.close_code) == (1, 4000)
        discord.gateway.answers_heartbeats = True
        await discord.write(ada, "meanwhile")
        async with listening(discord, inbox):
            await inbox.hears("meanwhile")


class TestRefusals:
    @pytest.mark.parametrize(
        ("code", "words"), [(4004, "token"), (4014, "intents"), (4013, "intents"), (4011, "2,500")]
    )
    async def test_what_somebody_must_correct_ends_the_connection(
        self, discord: DiscordEmulator, channel: DiscordChannel, code: int, words: str
    ) -> None:
        discord.gateway.refusal = code
        with pytest.raises(Undeliverable, match=words) as error:
            await channel.listen(at(discord), None, Inbox(channel).deliver)
        assert error.value.gone
        assert BOT_TOKEN not in str(error.value)

    async def test_after_too_many_requests_it_waits(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        discord.gateway.refusal = 4008
        with pytest.raises(TryAgain) as error:
            await channel.listen(at(discord), None, Inbox(channel).deliver)
        assert error.value.after_seconds == 60

    @pytest.mark.parametrize("code", [4007, 4009])
    async def test_a_session_that_is_over_is_not_resumed_again(
        self, discord: DiscordEmulator, channel: DiscordChannel, code: int
    ) -> None:
        inbox = Inbox(channel)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
        discord.gateway.refusal = code
        with pytest.raises(TryAgain):
            await channel.listen(at(discord), inbox.cursor, inbox.deliver)
        async with listening(discord, inbox):
            pass
        assert (len(discord.gateway.resumed), len(discord.gateway.identified)) == (1, 2)

    async def test_no_session_begins_beyond_the_limit_of_a_day(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        discord.gateway.remaining, inbox = 1, Inbox(channel)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
        with pytest.raises(TryAgain, match="no new session") as error:
            await channel.listen(at(discord), None, inbox.deliver)
        assert error.value.after_seconds == 3600
        assert len(discord.gateway.identified) == 1
        async with listening(discord, inbox):
            assert len(discord.gateway.resumed) == 1, "a session is resumed without a limit"

    async def test_a_session_that_does_not_begin_is_not_asked_for_in_a_loop(
        self, discord: DiscordEmulator, channel: DiscordChannel, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shown = {**discord.gateway.describe(), "session_start_limit": {"remaining": 5, "reset_after": 1}}
        monkeypatch.setattr(discord.gateway, "describe", lambda: shown)
        discord.gateway.remaining = 0
        with pytest.raises(TryAgain, match="began no session"):
            async with asyncio.timeout(20):
                await channel.listen(at(discord), None, Inbox(channel).deliver)
        assert len(discord.gateway.identified) == 1

    @pytest.mark.parametrize("url", ["ws://10.0.0.1/x", "wss://127.0.0.1:1/x", "http://127.0.0.1/x", "ws://[", ""])
    async def test_a_socket_goes_nowhere_that_a_request_may_not(
        self, discord: DiscordEmulator, channel: DiscordChannel, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        shown = {**discord.gateway.describe(), "url": url}
        monkeypatch.setattr(discord.gateway, "describe", lambda: shown)
        with pytest.raises((TryAgain, Undeliverable)):
            await channel.listen(at(discord), None, Inbox(channel).deliver)

    def test_the_token_is_not_sent_without_encryption(self) -> None:
        """Where the API is encrypted; the emulator's is not."""
        where = target("", {"api_url": "https://discord.example/api/v10"}, {"bot_token": BOT_TOKEN})
        with pytest.raises(TryAgain, match="without encryption"):
            gateway_address("ws://gateway.example", where)
        assert gateway_address("wss://gateway.example", where) == "wss://gateway.example/?v=10&encoding=json"


class TestInteractions:
    @pytest.mark.proves("D.841")
    async def test_presses_and_forms_need_no_address(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        await channel.identify(at(discord), None)
        await channel.send(outgoing(replace(at(discord), address=ada), card(APPROVE, DENY)))
        (shown,) = discord.messages_to(ada)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
            approved = await discord.press(ada, shown, "Approve")
            opened = await discord.press(ada, shown, "Deny")
            denied = await discord.submit(ada, opened, "too much")
            asked = await discord.command(ada, "status")
            await inbox.until(lambda: len(inbox.items) == 3)
        press, form, command = inbox.events
        assert [type(event) for event in inbox.events] == [ButtonPress, ButtonPress, ChatMessage]
        assert (press.data, form.note, command.text) == (live_buttons(shown)[0]["custom_id"], "too much", "/status")
        for event, interaction in zip((press, form, command), (approved, denied, asked), strict=True):
            await channel.answer(at(discord), event, InboundAnswer(text="Fine."))
            assert interaction.shown == ["Fine."]

    async def test_a_press_that_failed_for_its_person_is_not_taken_later(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        await channel.identify(at(discord), None)
        async with listening(discord, inbox):
            await inbox.until(lambda: inbox.cursor is not None)
        (link,) = discord.gateway.links
        await discord.gateway.until(lambda: link.close_code is not None)
        with pytest.raises(InteractionFailed):
            await discord.command(ada, "new")
        await discord.write(ada, "after it")
        async with listening(discord, inbox):
            await inbox.hears("after it")

    async def test_a_press_that_was_answered_and_not_stored_is_stored_later(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, inbox = discord.user("ada"), Inbox(channel)
        await channel.identify(at(discord), None)
        async with listening(discord, inbox) as task:
            await inbox.until(lambda: inbox.cursor is not None)
            inbox.failure = TryAgain("The database is away.")
            asked = await discord.command(ada, "new")
            with pytest.raises(TryAgain, match="database"):
                await task
        async with listening(discord, inbox):
            await inbox.hears("/new")
        assert asked.original is not None

    async def test_one_path_is_set_up(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        """An application with an address for interactions gets them nowhere else."""
        stored = at(discord, public_key=discord.public_key)
        async with open_door(channel, stored) as door:
            with_address = await channel.identify(stored, door.url)
            assert (discord.endpoint, with_address.to_do) == (door.url, ())
            unreachable = await channel.identify(stored, f"{discord.url}/nothing-there")
            assert discord.endpoint is None
            assert "sends presses over the Gateway" in unreachable.to_do[0]
            await channel.identify(stored, door.url)
            without = await channel.identify(stored, None)
            assert (discord.endpoint, without.to_do, without.config["mode"]) == (None, (), "gateway")
            modes = [(await channel.identify(at(discord, mode=""), url)).config["mode"] for url in (None, door.url)]
            assert modes == ["gateway", "http"]


@pytest.mark.proves("D.840")
async def test_a_conversation_from_the_message_to_the_answer(world: World, admin: asyncpg.Connection) -> None:
    """In a direct chat and where the bot is mentioned; a token that was reset disables the connection."""
    async with discord_stage() as stage:
        discord = stage.discord
        plane = Plane(world, stage, await stage.connect_listening(world))
        await link(admin, world, plane.connection_id, await world.person(Role.MEMBER, name="Bea"), stage.address("bea"))
        suite, bea, room = InteractiveSuite(), stage.address("bea"), discord.guild_channel("team")
        await suite._talks_with(plane, admin, turn(text="Hello Bea"))
        listener = ChannelListener(world.db, plane.door.channels, plane.inbox.wake, pauses=(0.01,))

        async def becomes(read: Callable[[], Awaitable[Any]], expected: Any) -> None:
            async with asyncio.timeout(20):
                while await read() != expected:
                    await plane.handle()
                    await asyncio.sleep(0.005)

        async def said() -> list[str]:
            return [row["text"] for row in await admin.fetch("select text from message order by seq")]

        async def answers() -> int:
            return len(discord.history(room))

        async def refusal() -> Any:
            return await admin.fetchval(
                "select disabled_reason from channel_connection where id = $1", plane.connection_id
            )

        await listener.beat()
        await stage.hold("bea", "Hi there")
        await becomes(said, ["Hi there"])
        await suite._answered(plane, admin)
        assert [message_text(message) for message in discord.messages_to(bea)] == ["Hello Bea"]
        assert discord.typing[0] == discord.direct_channel(bea)
        asked = await discord.write(bea, f"<@{discord.bot_id}> and here?", room, mentions=(discord.bot_id,))
        await becomes(said, ["Hi there", "Hello Bea", "and here?"])
        await suite._answered(plane, admin)
        (reply,) = discord.history(room)
        assert (message_text(reply), reply["message_reference"]["message_id"]) == ("Hello Bea", asked["id"])
        status = await discord.write(bea, f"<@{discord.bot_id}> /status", room, mentions=(discord.bot_id,))
        await becomes(answers, 2)
        assert discord.history(room)[-1]["message_reference"]["message_id"] == status["id"]
        discord.token = "reset"
        await discord.gateway.drop()
        await becomes(refusal, "Discord does not accept the token of the bot any more. (Close code 4004.)")
        await listener.leave()


async def test_a_reply_hands_a_request_on(strict: World, admin: asyncpg.Connection) -> None:
    async with discord_stage() as stage:
        discord, suite = stage.discord, InteractiveSuite()
        plane = await suite._plane(strict, admin, stage)
        await strict.person(Role.APPROVER, name="Cal")
        _, shown = await suite._asked(plane)
        bea = stage.address("bea")
        inbox = Inbox(stage.channel)
        async with listening(discord, inbox):
            await discord.write(bea, "delegate Cal", reply_to=discord.messages[shown.ref.partition(":")[2]])
            await inbox.hears("delegate Cal")
        (item,) = inbox.items.values()
        async with strict.db.transaction(strict.org_id) as tx:
            await channel_events.store_items(tx, plane.connection_id, stage.channel, [item])
        await plane.handle()
        assert "Cal" in message_text(discord.messages_to(bea)[-1])
        assert await admin.fetchval("select count(*) from approval_delegation") == 1
