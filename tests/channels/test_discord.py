"""Discord: the channel against its emulator, over HTTP with real signatures."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

import orjson
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.discord import DiscordChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import ButtonAction, ButtonPress, ChatMessage, InboundAnswer, read_button
from cortex_plane.notify.model.notifications import ChatReply, Occasion, Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from tests.channels.door import NOW, URL, Door, approved, card, open_door, outgoing, target
from tests.channels.signatures import discord_request
from tests.emulators.discord import BOT_TOKEN, DiscordEmulator, live_buttons, markup, message_text, message_urls
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.vendor_messages import send_whole

APPROVE, DENY, RESPOND = ButtonAction.APPROVE, ButtonAction.DENY, ButtonAction.RESPOND


@pytest_asyncio.fixture
async def discord() -> AsyncIterator[DiscordEmulator]:
    async with DiscordEmulator().serve() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[DiscordChannel]:
    made = DiscordChannel(VendorClient(Allowed.parse("127.0.0.1")))
    yield made
    await made.close()


def at(discord: DiscordEmulator, address: str, **config: str) -> Target:
    return target(address, {"api_url": discord.url, **config}, {"bot_token": BOT_TOKEN})


@pytest_asyncio.fixture
async def door(discord: DiscordEmulator, channel: DiscordChannel) -> AsyncIterator[Door]:
    """A connection that is set up."""
    async with open_door(channel, at(discord, "", public_key=discord.public_key)) as opened:
        identity = await channel.identify(opened.target, opened.url)
        opened.target = at(discord, "", **identity.config)
        yield opened


def shown_to(discord: DiscordEmulator, user: str) -> dict[str, Any]:
    (message,) = discord.messages_to(user)
    return message


def test_it_is_an_interactive_channel(channel: DiscordChannel) -> None:
    assert isinstance(channel, InteractiveChannel)


class TestSetUp:
    async def test_sets_the_endpoint_and_the_commands(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        identity = await channel.identify(door.target, door.url)
        assert (identity.account, identity.external_id, identity.to_do) == ("@cortex", discord.application_id, ())
        assert identity.config["public_key"] == discord.public_key
        assert discord.endpoint == door.url
        (command,) = discord.commands
        verbs = [option["name"] for option in command["options"]]
        assert verbs == ["ask", "new", "status", "pause", "resume", "agents", "delegate", "link", "help"]
        assert door.refusals == ["unauthenticated"], "Discord tried a bad signature, once"
        assert door.items == {}

    async def test_an_endpoint_that_discord_cannot_verify_is_something_to_do(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        stored = at(discord, "", public_key=discord.public_key)
        identity = await channel.identify(stored, f"{discord.url}/nothing-there")
        assert discord.endpoint is None
        assert "could not verify" in identity.to_do[0]

    async def test_what_needs_a_stored_connection_is_left_for_later(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        identity = await channel.identify(at(discord, ""), f"{discord.url}/inbound")
        assert identity.is_unfinished
        assert ("PATCH", "/api/v10/applications/@me") not in [request[:2] for request in discord.requests]

    async def test_without_a_public_address_it_says_what_is_missing(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        assert "CORTEX_PUBLIC_URL" in (await channel.identify(at(discord, "", mode="http"), None)).to_do[0]

    async def test_a_wrong_token_names_its_field(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        discord.token = "another"
        with pytest.raises(InvalidInput) as refusal:
            await channel.identify(at(discord, ""), None)
        assert refusal.value.details["field"] == "secrets.bot_token"
        assert BOT_TOKEN not in str(refusal.value)


class TestCards:
    async def test_shows_the_request_with_its_buttons(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        ada = discord.user("ada")
        sent = await channel.send(outgoing(at(discord, ada), card(APPROVE, DENY, RESPOND)))
        message = shown_to(discord, ada)
        assert sent.message_ref == f"{message['channel_id']}:{message['id']}"
        assert [button["label"] for button in live_buttons(message)] == ["Approve", "Deny", "Respond"]
        assert message_urls(message) == [URL]
        text = message_text(message)
        for part in ("HIGH RISK", "refund_order order 7", '"amount": 700', "The customer waits.", "refunds@1", "Ada"):
            assert part in text
        assert f"<t:{int((NOW + timedelta(hours=2)).timestamp())}:R>" in markup(message)
        order = [
            text.index(part)
            for part in ("HIGH RISK", "amount", "customer waits", "Refund it", "refunds@1", "May decide")
        ]
        assert order == sorted(order)

    async def test_text_of_others_is_no_markup_and_mentions_nobody(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        hostile = (
            "@everyone <@1> **bold** [here](https://evil.example) https://evil.example :fire:\n# big\n- item\n1. one"
        )
        await channel.send(
            outgoing(at(discord, ada), card(DENY, agent_says=hostile, target=hostile, arguments='"```\\n**x**"'))
        )
        message = shown_to(discord, ada)
        assert not message["mention_everyone"]
        raw = markup(message)
        for live in ("<@1>", "**bold**", "[here](", "https://evil", ":fire:", "\n> # big", "\n> - item", "\n> 1. one"):
            assert live not in raw
        assert raw.count("```") == 2, "the arguments do not leave their block"
        assert "https://evil.example" in message_text(message)

    async def test_the_outcome_replaces_the_card_in_place(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        first = await channel.send(outgoing(at(discord, ada), card(APPROVE, DENY)))
        sent = await channel.send(
            outgoing(at(discord, ada), approved(), earlier=first.message_ref, shown=first.shown, version=2)
        )
        message = shown_to(discord, ada)
        assert sent.message_ref == first.message_ref
        assert live_buttons(message) == []
        assert "Approved by Bea" in message_text(message)
        assert "fine" in message_text(message)

    @pytest.mark.parametrize("occasion", [Occasion.REMINDED, Occasion.ESCALATED])
    async def test_what_calls_again_stands_under_the_first_message(
        self, discord: DiscordEmulator, channel: DiscordChannel, occasion: Occasion
    ) -> None:
        ada = discord.user("ada")
        first = await channel.send(outgoing(at(discord, ada), card(APPROVE, DENY)))
        again = card(APPROVE, DENY, occasion=occasion, escalation_level=1)
        await channel.send(outgoing(at(discord, ada), again, earlier=first.message_ref, shown=first.shown, version=2))
        original, reminder = discord.messages_to(ada)
        assert reminder["message_reference"]["message_id"] == original["id"]
        assert live_buttons(reminder) == []
        assert live_buttons(original)

    async def test_a_vote_changes_the_message_without_another(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        first = await channel.send(outgoing(at(discord, ada), card(DENY)))
        change = card(DENY, occasion=Occasion.CHANGED, votes_needed=2)
        await channel.send(outgoing(at(discord, ada), change, earlier=first.message_ref, shown=first.shown, version=2))
        assert "0 of 2" in message_text(shown_to(discord, ada))

    async def test_a_retry_is_one_message(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        ada = discord.user("ada")
        discord.fail(VendorFault(status=502, is_late=True))
        with pytest.raises(TryAgain):
            await channel.send(outgoing(at(discord, ada), card(DENY)))
        await channel.send(outgoing(at(discord, ada), card(DENY)))
        assert len(discord.messages_to(ada)) == 1

    async def test_a_card_that_its_person_deleted_is_sent_anew_while_it_waits(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        first = await channel.send(outgoing(at(discord, ada), card(DENY)))
        discord.delete(shown_to(discord, ada))
        more = {"earlier": first.message_ref, "shown": first.shown}
        second = await channel.send(outgoing(at(discord, ada), card(DENY), **more, version=2))
        assert second.message_ref != first.message_ref
        discord.delete(shown_to(discord, ada))
        await channel.send(
            outgoing(at(discord, ada), approved(), earlier=second.message_ref, shown=second.shown, version=3)
        )
        assert discord.messages_to(ada) == []

    async def test_a_card_may_stand_in_a_shared_channel(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        deploys = discord.guild_channel("deploys")
        await channel.send(outgoing(at(discord, f"#{deploys}"), card(DENY)))
        assert len(discord.history(deploys)) == 1

    async def test_approve_needs_the_whole_of_the_arguments(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        fits = card(APPROVE, DENY, arguments="x" * 3900, agent_says="y" * 3000)
        assert channel.shows_whole(fits)
        await channel.send(outgoing(at(discord, ada), fits))
        assert "x" * 3900 in message_text(shown_to(discord, ada))
        long = replace(fits, arguments="x" * 4200)
        assert not channel.shows_whole(long)
        assert not channel.shows_whole(replace(fits, truncated=True))
        assert not channel.shows_whole(replace(fits, redacted=True))
        await channel.send(outgoing(at(discord, ada), long, version=2))
        assert [button["label"] for button in live_buttons(discord.messages_to(ada)[-1])] == ["Deny"]


class TestErrors:
    async def test_a_rate_limit_is_obeyed_without_another_request(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        body = {"message": "You are being rate limited.", "retry_after": 0.75, "global": False}
        discord.fail(VendorFault(status=429, body=body, headers={"Retry-After": "1"}))
        for _ in range(2):
            with pytest.raises(TryAgain) as error:
                await channel.send(outgoing(at(discord, ada), card(DENY)))
            assert 0 < (error.value.after_seconds or 0) <= 0.75
            assert error.value.only_chat, "others are not delayed"
        assert sum(path.endswith("/messages") for _, path, _ in discord.requests) == 1

    async def test_a_limit_of_everything_is_of_the_connection(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        body = {"message": "You are being rate limited.", "retry_after": 30, "global": True}
        discord.fail(VendorFault(status=429, body=body, headers={"X-RateLimit-Scope": "global"}))
        for name in ("ada", "bea"):
            with pytest.raises(TryAgain) as error:
                await channel.send(outgoing(at(discord, discord.user(name)), card(DENY)))
            assert not error.value.only_chat

    async def test_edits_in_one_channel_share_their_limit(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        first, second = [await channel.send(outgoing(at(discord, ada), card(DENY), version=n)) for n in (1, 2)]
        body = {"message": "You are being rate limited.", "retry_after": 30, "global": False}
        discord.fail(VendorFault(status=429, body=body))
        for sent in (first, second):
            with pytest.raises(TryAgain):
                await channel.send(outgoing(at(discord, ada), approved(), version=3, earlier=sent.message_ref))
        assert sum(method == "PATCH" for method, _, _ in discord.requests) == 1

    async def test_a_reply_that_arrived_does_not_fail_for_its_typing_indicator(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        chat = discord.direct_channel(discord.user("ada"))
        discord.fail(VendorFault(status=403, body={"code": 50013, "message": "Missing Permissions"}), after=1)
        sent = await channel.send(
            outgoing(at(discord, chat), ChatReply(agent="shipper", text="I look", is_final=False))
        )
        assert sent.message_ref is not None

    async def test_it_stops_before_a_limit_that_was_announced(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada, discord.burst = discord.user("ada"), 1
        await channel.send(outgoing(at(discord, ada), card(DENY)))
        with pytest.raises(TryAgain):
            await channel.send(outgoing(at(discord, ada), card(DENY), version=2))
        assert sum(path.endswith("/messages") for _, path, _ in discord.requests) == 1

    async def test_somebody_who_takes_no_direct_messages_is_an_address_that_fails(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        discord.unreachable.add(ada)
        for address in (ada, discord.new_id(), "ada"):
            with pytest.raises(Undeliverable) as error:
                await channel.send(outgoing(at(discord, address), card(DENY)))
            assert error.value.address

    async def test_a_token_that_was_revoked_ends_the_connection(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        discord.token = "reset"
        with pytest.raises(Undeliverable) as error:
            await channel.send(outgoing(at(discord, discord.user("ada")), card(DENY)))
        assert error.value.gone
        assert BOT_TOKEN not in str(error.value)

    async def test_trouble_at_discord_is_tried_again(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        discord.fail(VendorFault(status=503, body="<html>"))
        with pytest.raises(TryAgain):
            await channel.send(outgoing(at(discord, discord.user("ada")), card(DENY)))


class TestPresses:
    async def test_approve_arrives_as_a_press_and_is_answered_privately(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        ada = discord.user("ada")
        sent = await channel.send(outgoing(replace(door.target, address=ada), card(APPROVE, DENY)))
        press = await discord.press(ada, shown_to(discord, ada), "Approve")
        assert press.response == {"type": 6}
        (event,) = door.events()
        assert isinstance(event, ButtonPress)
        assert (event.sender.id, event.sender.name, event.note) == (ada, "Ada", None)
        assert event.chat.is_private
        assert event.message_ref == sent.message_ref
        button = read_button(event.data)
        assert button is not None
        assert button.action is APPROVE
        before = shown_to(discord, ada)
        await channel.answer(door.target, event, InboundAnswer(text="Approved."))
        assert press.shown == ["Approved."]
        assert press.followups[0]["flags"] & 64
        assert shown_to(discord, ada) == before, "the answer does not replace the card"

    @pytest.mark.parametrize(("label", "note"), [("Deny", "too much"), ("Deny", ""), ("Respond", "use order 8")])
    async def test_deny_and_respond_open_a_form_and_arrive_with_its_words(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door, label: str, note: str
    ) -> None:
        ada = discord.user("ada")
        await channel.send(outgoing(replace(door.target, address=ada), card(DENY, RESPOND)))
        opened = await discord.press(ada, shown_to(discord, ada), label)
        assert opened.modal is not None
        assert door.items == {}, "nothing happened yet"
        submission = await discord.submit(ada, opened, note)
        (event,) = door.events()
        assert isinstance(event, ButtonPress)
        assert event.note == note
        assert event.data == opened.modal["custom_id"]
        await channel.answer(door.target, event, InboundAnswer(text="Only @approvers may do that.", is_problem=True))
        assert submission.shown == ["Only \\@approvers may do that."]
        assert submission.original is not None
        assert submission.original["flags"] & 64

    async def test_a_press_in_a_shared_channel_names_who_pressed(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        deploys, mallory = discord.guild_channel("deploys"), discord.user("mallory")
        await channel.send(outgoing(replace(door.target, address=f"#{deploys}"), card(APPROVE)))
        await discord.press(mallory, discord.history(deploys)[0], "Approve")
        (event,) = door.events()
        assert isinstance(event, ButtonPress)
        assert (event.sender.id, event.chat.id, event.chat.is_private) == (mallory, deploys, False)

    async def test_an_event_that_comes_twice_has_one_id(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        ada = discord.user("ada")
        await channel.send(outgoing(replace(door.target, address=ada), card(APPROVE)))
        press = await discord.press(ada, shown_to(discord, ada), "Approve")
        assert await discord.redeliver(press) == 200
        assert len(door.items) == 1

    async def test_an_answer_that_comes_too_late_is_no_error(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        ada = discord.user("ada")
        await channel.send(outgoing(replace(door.target, address=ada), card(APPROVE)))
        await discord.press(ada, shown_to(discord, ada), "Approve")
        discord.interactions.clear()
        (event,) = door.events()
        assert isinstance(event, ButtonPress)
        assert await channel.answer(door.target, event, InboundAnswer(text="Approved.")) is None


class TestCommands:
    async def test_ask_carries_words_for_the_agent(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        ada = discord.user("ada")
        asked = await discord.command(ada, "ask", text="/new is what I say")
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        assert event.text == "/new is what I say"
        assert asked.shown == []
        await channel.answer(door.target, event, InboundAnswer(text="The agent has it."))
        assert asked.shown == ["The agent has it."]

    @pytest.mark.parametrize(
        ("verb", "options", "text"),
        [("new", {}, "/new"), ("agents", {}, "/agents"), ("agents", {"name": "support"}, "/agents support"), ("link", {"code": "K7"}, "/link K7"),
         ("delegate", {"reason": "he knows", "name": "Cal Lee", "request": "k7q2m5xa"}, "/delegate k7q2m5xa Cal Lee he knows")],
    )  # fmt: skip
    async def test_a_verb_is_a_command(
        self, discord: DiscordEmulator, door: Door, verb: str, options: dict[str, str], text: str
    ) -> None:
        await discord.command(discord.user("ada"), verb, **options)
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        assert (event.text, event.chat.is_private) == (text, True)

    async def test_answers_name_commands_as_they_are_typed_here(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door
    ) -> None:
        paused = await discord.command(discord.user("ada"), "pause")
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        text = "Paused. /resume goes on. See https://plane.example/status and /etc."
        await channel.answer(door.target, event, InboundAnswer(text=text))
        seen = message_text({"content": paused.shown[0], "embeds": []})
        assert seen == text.replace("/resume", "/cortex resume")

    async def test_a_command_in_a_server_is_not_private(self, discord: DiscordEmulator, door: Door) -> None:
        await discord.command(discord.user("ada"), "link", discord.guild_channel("general"), code="K7")
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        assert not event.chat.is_private


class TestReplies:
    async def test_long_replies_are_split_and_their_links_shown(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        chat = discord.direct_channel(ada)
        text = "**Done**, see [our page](https://evil.example). @everyone\n\n" + "A sentence of words. " * 150
        sent = await send_whole(channel, outgoing(at(discord, chat), ChatReply(agent="support", text=text)))
        messages = discord.messages_to(ada)
        assert len(messages) == 2
        assert messages[0]["content"].startswith("**Done**, see our page")
        assert not any(message["mention_everyone"] for message in messages)
        assert all(message["flags"] & 4 for message in messages), "no previews of links"
        assert sent.message_ref == f"{chat}:{messages[0]['id']}"

    async def test_a_reply_that_grows_is_edited(self, discord: DiscordEmulator, channel: DiscordChannel) -> None:
        ada = discord.user("ada")
        to = at(discord, discord.direct_channel(ada))
        first = await channel.send(outgoing(to, ChatReply(agent="support", text="One", is_final=False)))
        more = {"earlier": first.message_ref, "shown": first.shown, "version": 2}
        await channel.send(outgoing(to, ChatReply(agent="support", text="One, two."), **more))
        assert [message["content"] for message in discord.messages_to(ada)] == ["One, two."]
        assert discord.typing == [to.address]

    async def test_deleted_parts_of_a_reply_are_sent_anew_in_their_thread(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        to = at(discord, discord.direct_channel(ada))
        thread = "1573101140252295174"

        def reply(word: str) -> ChatReply:
            return ChatReply(agent="support", text=f"A {word} of words. " * 190, thread=thread)

        first = await send_whole(channel, outgoing(to, reply("sentence")))
        for message in discord.messages_to(ada):
            discord.delete(message)
        more = {"earlier": first.message_ref, "shown": first.shown, "version": 2}
        await send_whole(channel, outgoing(to, reply("line"), **more))
        parts = discord.messages_to(ada)
        assert ["line" in part["content"] for part in parts] == [True, True]
        assert [part.get("message_reference", {}).get("message_id") for part in parts] == [thread, None]


class TestSignatures:
    async def test_another_key_is_refused(self, discord: DiscordEmulator, door: Door) -> None:
        body = orjson.dumps({"type": 3, "id": "1"})
        assert await discord.forge(body) == 401
        assert door.items == {}
        await discord.recheck()
        assert discord.endpoint == door.url, "Discord would remove an endpoint that takes bad signatures"

    @pytest.mark.parametrize("change", ["body", "timestamp", "signature", "old", "missing"])
    async def test_whatever_was_changed_is_refused(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door, change: str
    ) -> None:
        request = discord_request(discord.key, b'{"type":1}', change)
        with pytest.raises(Unauthenticated):
            channel.receive(door.target, request)
        good = channel.receive(door.target, discord_request(discord.key, b'{"type":1}', "nothing"))
        assert orjson.loads(good.reply.body) == {"type": 1}

    @pytest.mark.parametrize(
        "body",
        [b"", b"[]", b'{"type":3}', b'{"type":99,"id":"1"}', b'{"type":3,"id":"1","token":"t","application_id":"1","channel_id":"1","user":{"id":"1"},"context":1,"data":{}}'],
    )  # fmt: skip
    async def test_what_is_signed_and_malformed_is_bad_input(
        self, discord: DiscordEmulator, channel: DiscordChannel, door: Door, body: bytes
    ) -> None:
        with pytest.raises(InvalidInput):
            channel.receive(door.target, discord_request(discord.key, body, "nothing"))

    async def test_an_expired_request_has_no_live_button(
        self, discord: DiscordEmulator, channel: DiscordChannel
    ) -> None:
        ada = discord.user("ada")
        over = card(APPROVE, status=ApprovalStatus.EXPIRED, occasion=Occasion.RESOLVED)
        await channel.send(outgoing(at(discord, ada), over))
        assert live_buttons(shown_to(discord, ada)) == []
