"""Telegram passes what every channel must pass, and what every channel must on which people act."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from uuid import UUID

import asyncpg
import orjson
import pytest
import pytest_asyncio

from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.emulators.telegram import TOKEN, TelegramEmulator, TelegramMessage
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.model.channels import ButtonPress, InboundAnswer, InboundEvent
from cortex_plane.notify.model.notifications import Target
from cortex_plane.notify.verbs import reply_streams
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from cortex_plane.worker.notifier import stream_pace
from tests.channels.behaviour import Arrived, Failure, without_pace
from tests.channels.interactive_behaviour import InteractiveStage, InteractiveSuite, ListeningSuite, SeenMessage
from tests.channels.outage_behaviour import OutageSuite
from tests.channels.streaming_behaviour import BEGINNING, END, LongReplySuite, StreamingSuite, conversing
from tests.fixtures.clock import Clock
from tests.fixtures.people import World
from tests.fixtures.vendor_messages import FAULTS, served_by

ROOM = -1001


class _AnsweringTelegram(TelegramChannel):
    """It notes which of the messages at Telegram were answers: in a private chat they look like any other."""

    def __init__(self, client: VendorClient, vendor: TelegramEmulator) -> None:
        super().__init__(client)
        self._vendor = vendor
        self.answers: list[tuple[str, str]] = []
        self.refs: set[tuple[int, int]] = set()

    async def answer(self, target: Target, event: InboundEvent, answer: InboundAnswer) -> str | None:
        before = len(self._vendor.history)
        ref = await super().answer(target, event, answer)
        texts = []
        if isinstance(event, ButtonPress):
            query = self._vendor.queries[event.answer_to["callback_query_id"]]
            texts = [query.text]
        for message in self._vendor.history[before:]:
            self.refs.add((message.chat, message.id))
            texts.append(message.text)
        self.answers += [(event.sender.id, text) for text in texts]
        return ref


class TelegramStage:
    redelivers = True
    pause = timedelta(seconds=7)
    """Telegram cannot tell that it has a message already."""

    def __init__(self, vendor: TelegramEmulator, channel: _AnsweringTelegram) -> None:
        self.channel = channel
        self._vendor = vendor
        vendor.add_group(ROOM, "Room")

    async def connect(self, world: World) -> UUID:
        draft = ConnectionDraft(
            channel_type="telegram", name="bot", config={"api_url": self._vendor.url, "mode": "webhook"},
            secrets={"bot_token": TOKEN},
        )  # fmt: skip
        new = await connections.create_connection(world.db, world.admin.actor, draft, channels=served_by(self.channel))
        # The suite delivers what happens itself.
        self._vendor.webhook["url"] = ""
        return new.id

    async def connect_listening(self, world: World) -> UUID:
        draft = ConnectionDraft(
            channel_type="telegram", name="poller", config={"api_url": self._vendor.url, "mode": "polling"},
            secrets={"bot_token": TOKEN},
        )  # fmt: skip
        return (
            await connections.create_connection(world.db, world.admin.actor, draft, channels=served_by(self.channel))
        ).id

    async def hold(self, name: str, text: str) -> None:
        self._vendor.write(self._user(name), text)

    async def is_polled(self) -> None:
        """Until somebody waits for what comes next."""
        await self._vendor.poller.wait()

    def address(self, name: str) -> str:
        return str(self._user(name))

    def _user(self, name: str) -> int:
        user = int.from_bytes(name.encode())
        self._vendor.join(user, name)
        return user

    async def arrived(self) -> list[Arrived]:
        return [_arrived(state) for state in self._vendor.history]

    def fail(self, how: Failure, times: int) -> None:
        self._vendor.faults.faults.clear()
        self._vendor.fail(FAULTS[how], times)

    async def messages(self) -> list[SeenMessage]:
        refs = dict.fromkeys((state.chat, state.id) for state in self._vendor.history)
        now = {(m.chat, m.id): m for chat, _ in refs for m in self._vendor.chat(chat)}
        return [_seen(now[ref]) for ref in refs if ref not in self.channel.refs]

    async def answers(self, name: str) -> list[str]:
        return [text for user, text in self.channel.answers if user == self.address(name)]

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        shown, data = message.buttons[label]
        return self._press(name, shown, data, private)

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        shown, _ = next(iter(message.buttons.values()))
        return self._press(name, shown, data, True)

    def _press(self, name: str, shown: TelegramMessage, data: str, private: bool) -> VendorRequest:
        self._vendor.send_press(self._user(name), shown if private else replace(shown, chat=ROOM), data)
        return self._request()

    async def words(self, name: str, text: str) -> VendorRequest:
        user = self._user(name)
        prompt = next(message for message in reversed(self._vendor.chat(user)) if message.asks_reply)
        self._vendor.reply(user, prompt.id, text)
        return self._request()

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        if private:
            files = (
                {"document": {"file_id": "1", "file_unique_id": "1", "file_name": attachments[0]}}
                if attachments
                else {}
            )
            self._vendor.write(self._user(name), text, fields=files)
        else:
            self._vendor.write(self._user(name), f"@{self._vendor.username} {text}", chat=ROOM)
        return self._request()

    def forge(self, request: VendorRequest) -> VendorRequest:
        return replace(request, headers={"x-telegram-bot-api-secret-token": "another"})

    def _request(self) -> VendorRequest:
        (*_, update) = [update for kind, update in self._vendor.traffic if kind == "Update"]
        headers = {"x-telegram-bot-api-secret-token": self._vendor.webhook["secret_token"]}
        return VendorRequest("POST", {}, headers, orjson.dumps(update))


def _seen(message: TelegramMessage) -> SeenMessage:
    state = replace(message)
    buttons = {
        button["text"]: (state, button["callback_data"])
        for row in state.buttons
        for button in row
        if "callback_data" in button
    }
    return SeenMessage(ref=f"{state.chat}:{state.id}", chat=str(state.chat), text=state.text, buttons=buttons)


def _arrived(state: TelegramMessage) -> Arrived:
    heading = state.text.split("\n")[0]
    (url,) = [button["url"] for row in state.buttons for button in row if "url" in button]
    return Arrived(
        address=str(state.chat),
        thread=url,
        status="pending" if "needed" in heading else heading.split()[0].lower(),
        text=state.text,
        urls=[url],
    )


@asynccontextmanager
async def telegram_stage() -> AsyncIterator[TelegramStage]:
    async with TelegramEmulator().serve() as vendor:
        channel = _AnsweringTelegram(VendorClient(Allowed.parse("127.0.0.0/8"), timeout=1), vendor)
        yield TelegramStage(vendor, without_pace(channel))
        await channel.close()


@pytest_asyncio.fixture
async def stage() -> AsyncIterator[TelegramStage]:
    async with telegram_stage() as stage:
        yield stage


class TestTelegram(OutageSuite):
    pass


class TestTelegramInteractive(InteractiveSuite):
    pass


class TestTelegramListening(ListeningSuite):
    pass


class TestTelegramLongReplies(LongReplySuite):
    @pytest.mark.proves("D.894")
    async def test_killed_between_parts_repeats_none_and_killed_in_one_repeats_that_one(
        self, strict: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        await super().test_killed_between_parts_repeats_none_and_killed_in_one_repeats_that_one(strict, admin, stage)


class TestTelegramStreaming(StreamingSuite):
    @pytest.mark.proves("D.893")
    async def test_answer_grows_in_one_message_until_it_is_whole(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        await super().test_answer_grows_in_one_message_until_it_is_whole(world, admin, stage)

    async def test_answers_in_a_group_share_a_slower_pace(
        self, world: World, admin: asyncpg.Connection, stage: InteractiveStage
    ) -> None:
        async with conversing(world, admin, stage) as talk:
            clock = await Clock.install(admin, await admin.fetchval("select clock_timestamp()"))
            await talk.write("Tell us", private=False)
            async with talk.working():
                talk.model.say(BEGINNING)
                await talk.written(BEGINNING)
                (stream,) = await reply_streams.find_streams(world.db, {"telegram": 2.0})
                assert stream_pace(stage.channel.traits, stream) == 6.0
                assert stream_pace(stage.channel.traits, replace(stream, chat_streams=3)) == 18.0
                assert stream_pace(stage.channel.traits, replace(stream, chat_streams=3, address="5")) == 2.0
                shown = await talk.look()
                talk.model.say(END)
                await talk.written(BEGINNING + END)
                await clock.advance(timedelta(seconds=5))
                assert await talk.look() == shown
                await clock.advance(timedelta(seconds=1))
                (text,) = await talk.look()
                assert text.endswith(f"{END} …")
