"""The channel to Telegram against its emulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.telegram.channel import TelegramChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.emulators.telegram import TOKEN, TelegramEmulator, TelegramMessage
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import ButtonPress, ChatMessage, InboundAnswer, InboundEvent, InboundItem
from cortex_plane.notify.model.notifications import (
    Alert,
    Invitation,
    Notice,
    Occasion,
    Sent,
    Target,
    TryAgain,
    Undeliverable,
)
from cortex_plane.notify.verbs.channel_port import ActivityChannel, InteractiveChannel
from tests.fixtures.vendor_messages import APPROVE, DENY, NOW, card_with_buttons, message, posted, reply, send_whole

BEA, ANN, GROUP = 42, 43, -1001
SECRET = "the-secret-of-the-webhook"


@pytest_asyncio.fixture
async def vendor() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator().serve() as emulator:
        emulator.join(BEA, "Bea")
        yield emulator


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[TelegramChannel]:
    channel = TelegramChannel(VendorClient(Allowed.parse("127.0.0.1")), poll_seconds=20)
    yield channel
    await channel.close()


def target(vendor: TelegramEmulator, address: int = BEA, **secrets: str) -> Target:
    config = {"api_url": vendor.url, "bot_id": "123456789", "bot_username": vendor.username}
    return Target(
        connection_id=UUID(int=3), connection="tg", config=config, secrets={"bot_token": TOKEN, **secrets},
        address=str(address), member="Bea",
    )  # fmt: skip


async def next_event(vendor: TelegramEmulator, channel: TelegramChannel) -> InboundEvent | None:
    """What the newest update says, as it comes from the webhook."""
    update = [update for kind, update in vendor.traffic if kind == "Update"][-1]
    where = target(vendor, webhook_secret=SECRET)
    (item,) = channel.receive(where, posted(orjson.dumps(update), {"X-Telegram-Bot-Api-Secret-Token": SECRET})).items
    return channel.read(orjson.loads(orjson.dumps(item.payload)))


def last(vendor: TelegramEmulator, user: int = BEA) -> TelegramMessage:
    return vendor.chat(user)[-1]


def test_it_is_a_channel_on_which_people_act(channel: TelegramChannel) -> None:
    assert isinstance(channel, InteractiveChannel)


# Cards.


async def test_a_card_has_buttons_and_all_that_is_decided_on(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons(arguments='{"note": "<b> & @bea"}')))
    shown = last(vendor)
    assert sent.message_ref == f"{BEA}:{shown.id}"
    assert shown.text.startswith("Approval needed\n🟠 HIGH RISK · ship\n")
    assert '{"note": "<b> & @bea"}' in shown.text
    assert "Expires: 2026-05-01 14:00:00 UTC (in 2 h." in shown.text
    assert [[button["text"] for button in row] for row in shown.buttons] == [["Approve"], ["Deny", "Respond"], ["Open"]]
    assert shown.buttons[0][0]["callback_data"] == APPROVE.data
    assert shown.buttons[2][0]["url"] == "https://plane.example/approvals/7"


async def test_a_card_carries_no_credential(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    secret = card_with_buttons(
        token="cortex_apr_1_x", approve_url="https://plane.example/a?sig=1", deny_url="https://plane.example/d?sig=1"
    )
    await channel.send(message(target(vendor), secret))
    shown = str(vars(last(vendor)))
    assert "cortex_apr" not in shown
    assert "sig=" not in shown


async def test_nobody_is_mentioned_outside_of_code(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    says = "ask @everyone or ann@corp.example, not @@bea"
    await channel.send(message(target(vendor), card_with_buttons(agent_says=says)))
    assert "ask ＠everyone or ann@corp.example, not @＠bea" in last(vendor).text


@pytest.mark.parametrize("end", ["approved", "denied", "expired", "cancelled"])
async def test_the_same_message_says_how_it_ended_and_has_no_live_button(
    vendor: TelegramEmulator, channel: TelegramChannel, end: str
) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    ended = card_with_buttons(
        status=ApprovalStatus(end), occasion=Occasion.RESOLVED, resolved_at=NOW, resolved_by="Ann"
    )
    again = await channel.send(message(target(vendor), ended, sent))
    assert again.message_ref == sent.message_ref
    assert len(vendor.chat(BEA)) == 1
    assert last(vendor).text.startswith(f"{end.capitalize()} by Ann\n")
    assert vendor.live_buttons(BEA) == []
    assert [[button["text"] for button in row] for row in last(vendor).buttons] == [["Open"]]


async def test_the_same_version_twice_is_no_error(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    assert (await channel.send(message(target(vendor), card_with_buttons(), sent))).message_ref == sent.message_ref
    assert len(vendor.history) == 1


@pytest.mark.parametrize("occasion", [Occasion.REMINDED, Occasion.ESCALATED])
async def test_a_reminder_stands_under_the_first_message(
    vendor: TelegramEmulator, channel: TelegramChannel, occasion: Occasion
) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    again = await channel.send(message(target(vendor), card_with_buttons(occasion=occasion), sent))
    first, note = vendor.chat(BEA)
    assert again.message_ref == sent.message_ref == f"{BEA}:{first.id}"
    assert note.reply_to == first.id
    assert note.text.endswith("approval needed: ship")
    assert note.buttons == []


async def test_a_card_whose_message_is_gone_is_sent_anew(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    again = await channel.send(message(target(vendor), card_with_buttons(), replace(sent, message_ref=f"{BEA}:99999")))
    assert again.message_ref == f"{BEA}:{last(vendor).id}"
    assert len(vendor.chat(BEA)) == 2


async def test_approve_needs_every_argument_whole(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    short, long = card_with_buttons(), card_with_buttons(arguments="x" * 3900, original_arguments="y" * 3900)
    assert channel.shows_whole(short)
    assert channel.shows_whole(card_with_buttons(arguments="x" * 2800, original_arguments="y" * 3900)), (
        "what explains is cut"
    )
    assert not channel.shows_whole(card_with_buttons(arguments="🟠" * 2000))
    assert not channel.shows_whole(card_with_buttons(truncated=True))
    assert not channel.shows_whole(card_with_buttons(redacted=True))
    assert not channel.shows_whole(long)
    await channel.send(message(target(vendor), long))
    assert vendor.live_buttons(BEA) == ["Deny", "Respond"]
    assert " … (cut)" in last(vendor).text


async def test_an_address_that_telegram_takes_as_no_link_is_text(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    await channel.send(message(target(vendor), card_with_buttons(url="http://localhost:8000/approvals/7")))
    assert last(vendor).text.endswith("http://localhost:8000/approvals/7")
    assert vendor.live_buttons(BEA) == ["Approve", "Deny", "Respond"]


async def test_invitations_and_alerts_are_short_texts(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    invitation = Invitation(
        org="Acme <&>", invited_by="Ann", url="https://plane.example/v/1", expires_at=NOW + timedelta(days=1)
    )
    alert = Alert(
        alert="checkpoint_corrupt", org="Acme", agent="shipper", agent_id=UUID(int=1), job_id=UUID(int=2),
        session_id=UUID(int=3), corruption_type="crc_mismatch", message="bytes differ", url="https://plane.example/jobs/2",
        happened_at=NOW,
    )  # fmt: skip
    await channel.send(message(target(vendor), invitation))
    await channel.send(message(target(vendor), alert))
    first, second = vendor.chat(BEA)
    assert "Acme <&>" in first.text
    assert first.text.endswith("https://plane.example/v/1")
    assert "crc_mismatch" in second.text
    notice = Notice(trigger="gate_blocked", atlas_id="a", version="1", session_id=UUID(int=3), data={}, happened_at=NOW)
    with pytest.raises(Undeliverable, match="nothing else"):
        await channel.send(message(target(vendor), notice))


# Replies.


async def test_markdown_becomes_telegrams_markup(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    text = "**Done** & `a<b`:\n\n- [bank](https://evil.example)\n\n```python\nif a < b: pass\n```"
    await channel.send(message(target(vendor), reply(text)))
    shown = last(vendor)
    assert shown.text == "Done & a<b:\n\n• bank (https://evil.example)\nif a < b: pass"
    assert [entity["type"] for entity in shown.entities] == ["bold", "code", "pre"]


async def test_a_long_reply_is_split(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    text = "\n\n".join(f"Paragraph {n}. " + "words " * 60 for n in range(30))
    sent = await send_whole(channel, message(target(vendor), reply(text)))
    parts = [part.text for part in vendor.chat(BEA)]
    assert len(parts) > 1
    assert " ".join(parts).split() == text.split()
    assert [ref for ref, _ in sent.shown["parts"]] == [f"{BEA}:{part.id}" for part in vendor.chat(BEA)]


async def test_a_long_reply_of_hidden_characters_arrives(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    await send_whole(channel, message(target(vendor), reply("\u202e" * 3000)))
    assert sum(part.text.count("U+202E") for part in vendor.chat(BEA)) >= 2990


async def test_a_reply_that_grows_is_edited(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    begun = await channel.send(message(target(vendor), reply("I look", is_final=False)))
    ended = await channel.send(message(target(vendor), reply("I looked: 7"), begun))
    assert [part.text for part in vendor.chat(BEA)] == ["I looked: 7"]
    assert ended.message_ref == begun.message_ref
    assert vendor.actions == [(BEA, "typing")]


async def test_a_reply_whose_message_is_gone_is_sent_anew(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    begun = Sent(message_ref=f"{BEA}:99999", shown={"parts": [[f"{BEA}:99999", "of other words"]]})
    ended = await channel.send(message(target(vendor), reply("I looked: 7"), begun))
    assert [part.text for part in vendor.chat(BEA)] == ["I looked: 7"]
    assert ended.message_ref == f"{BEA}:{last(vendor).id}"


@pytest.mark.parametrize("text", ["```\n```", "[](https://example.com)", "# "])
async def test_a_reply_that_shows_nothing_is_no_error(
    vendor: TelegramEmulator, channel: TelegramChannel, text: str
) -> None:
    await channel.send(message(target(vendor), reply(text)))
    assert last(vendor).text


async def test_an_agent_that_has_said_nothing_yet_is_typing(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    await channel.send(message(target(vendor), reply("", is_final=False)))
    assert vendor.actions == [(BEA, "typing")]
    assert vendor.chat(BEA) == []


async def test_markdown_that_grows_beyond_the_limit_is_sent_as_it_stands(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    text = "[x][1] " * 400 + "\n\n[1]: https://example.com/" + "y" * 900
    await channel.send(message(target(vendor), reply(text)))
    assert last(vendor).text.startswith("[x][1] [x][1]")


# Errors.


@pytest.mark.parametrize(
    ("fault", "error", "values"),
    [
        ("flood", TryAgain, {"after_seconds": 7.0}),
        ("down", TryAgain, {"after_seconds": None}),
        ("refusal", Undeliverable, {"address": True, "gone": False}),
    ],
)
async def test_a_fault_of_the_vendor_says_whether_to_try_again(
    vendor: TelegramEmulator, channel: TelegramChannel, fault: str, error: type[Exception], values: dict[str, Any]
) -> None:
    vendor.fail(fault)
    with pytest.raises(error) as raised:
        await channel.send(message(target(vendor), card_with_buttons()))
    assert {name: getattr(raised.value, name) for name in values} == values


@pytest.mark.parametrize(("chat", "only_chat"), [(GROUP, True), (BEA, False)])
async def test_the_limit_of_a_group_delays_nobody_else(
    vendor: TelegramEmulator, channel: TelegramChannel, chat: int, only_chat: bool
) -> None:
    vendor.add_group(GROUP, "Deploys")
    vendor.fail("flood")
    with pytest.raises(TryAgain) as raised:
        await channel.send(message(target(vendor, chat), card_with_buttons()))
    assert raised.value.only_chat == only_chat


async def test_somebody_who_never_wrote_to_the_bot_cannot_be_reached(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    with pytest.raises(Undeliverable, match="chat not found") as raised:
        await channel.send(message(target(vendor, 999), card_with_buttons()))
    assert raised.value.address


async def test_a_token_that_was_revoked_ends_the_connection(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    vendor.revoke()
    with pytest.raises(Undeliverable) as raised:
        await channel.send(message(target(vendor), card_with_buttons()))
    assert raised.value.gone
    assert TOKEN not in str(raised.value)


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "http://10.0.0.1", "ftp://x", "http://127.0.0.1:1/a b"])
async def test_no_error_tells_the_token(vendor: TelegramEmulator, channel: TelegramChannel, url: str) -> None:
    where = replace(target(vendor), config={"api_url": url})
    with pytest.raises((TryAgain, Undeliverable)) as raised:
        await channel.send(message(where, card_with_buttons()))
    assert TOKEN not in str(raised.value) + repr(raised.value.__dict__)


# The connection.


async def test_a_webhook_is_set_with_a_secret_that_stays(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    identity = await channel.identify(target(vendor), "https://plane.example/v1/in/1")
    assert (identity.account, identity.external_id) == ("@cortex_demo_bot", "123456789")
    assert identity.config == {"mode": "webhook", "bot_id": "123456789", "bot_username": "cortex_demo_bot"}
    assert vendor.webhook["url"] == "https://plane.example/v1/in/1"
    assert vendor.webhook["secret_token"] == identity.secrets["webhook_secret"]
    assert vendor.webhook["allowed_updates"] == ["message", "callback_query"]
    assert [command["command"] for command in vendor.commands][:2] == ["new", "status"]
    again = await channel.identify(
        target(vendor, webhook_secret=identity.secrets["webhook_secret"]), "https://plane.example/v1/in/1"
    )
    assert again == identity


async def test_polling_needs_no_address_and_ends_the_webhook(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    vendor.webhook["url"] = "https://old.example"
    identity = await channel.identify(target(vendor), None)
    assert (identity.config["mode"], identity.secrets) == ("polling", {})
    assert vendor.webhook["url"] == ""


@pytest.mark.parametrize(
    ("config", "secrets", "field"),
    [
        ({}, {"bot_token": "123456:wrong"}, "bot_token"),
        ({"mode": "webhook"}, {"bot_token": TOKEN}, "mode"),
        ({"api_url": "http://10.0.0.1"}, {"bot_token": TOKEN}, "api_url"),
    ],
)
async def test_what_is_wrong_with_a_connection_is_named(
    vendor: TelegramEmulator, channel: TelegramChannel, config: dict[str, str], secrets: dict[str, str], field: str
) -> None:
    where = replace(target(vendor), config={"api_url": vendor.url, **config}, secrets=secrets)
    with pytest.raises(InvalidInput) as raised:
        await channel.identify(where, None)
    assert raised.value.details["field"] == field
    assert secrets["bot_token"] not in str(raised.value)


# What comes in.


@pytest.mark.parametrize("secret", ["", "wrong", SECRET + "x"])
async def test_an_update_without_the_secret_is_refused(
    vendor: TelegramEmulator, channel: TelegramChannel, secret: str
) -> None:
    request = posted(b'{"update_id": 1}', {"X-Telegram-Bot-Api-Secret-Token": secret})
    with pytest.raises(Unauthenticated):
        channel.receive(target(vendor, webhook_secret=SECRET), request)
    with pytest.raises(Unauthenticated):
        channel.receive(target(vendor), request)


@pytest.mark.parametrize("body", [b"", b"no json", b"[]", b"{}", b'{"update_id": "1"}', b'{"update_id": true}'])
async def test_a_malformed_update_is_invalid(vendor: TelegramEmulator, channel: TelegramChannel, body: bytes) -> None:
    with pytest.raises(InvalidInput):
        channel.receive(
            target(vendor, webhook_secret=SECRET), posted(body, {"X-Telegram-Bot-Api-Secret-Token": SECRET})
        )


@pytest.mark.parametrize(
    "payload",
    [
        {}, {"update": 1}, {"update": {}}, {"update": {"message": {}}}, {"update": {"callback_query": {}}},
        {"update": {"message": {"from": {"id": 1}, "text": "x"}}}, {"update": {"edited_message": {"text": "x"}}},
        {"update": {"message": {"from": {"id": 1}, "chat": {"id": 1, "type": "private"}, "text": 7}}},
        {"update": {"message": {"from": {"id": 1}, "chat": {"id": 1, "type": "private"}, "text": "x", "reply_to_message": 7,
                                "sender_chat": {"id": -5}}}},
    ],
)  # fmt: skip
def test_what_concerns_nobody_is_none(channel: TelegramChannel, payload: dict[str, Any]) -> None:
    assert channel.read(payload) is None


async def test_a_press_names_who_pressed_what_where(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    query = vendor.press(BEA, last(vendor).id, "Deny")
    press = await next_event(vendor, channel)
    assert isinstance(press, ButtonPress)
    assert (press.sender.id, press.sender.name, press.sender.is_bot) == (str(BEA), "Bea", False)
    assert (press.data, press.message_ref, press.note) == (DENY.data, sent.message_ref, None)
    assert (press.chat.id, press.chat.is_private) == (str(BEA), True)
    await channel.answer(target(vendor), press, InboundAnswer(text="Somebody else did.", is_problem=True))
    assert (query.is_answered, query.text, query.is_alert) == (True, "Somebody else did.", True)
    assert len(vendor.chat(BEA)) == 1


async def test_a_press_in_a_group_is_of_the_person_and_not_of_the_group(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    vendor.add_group(GROUP, "Deploys")
    await channel.send(message(target(vendor, GROUP), card_with_buttons()))
    vendor.press(ANN, vendor.chat(GROUP)[-1].id, "Approve", chat=GROUP)
    press = await next_event(vendor, channel)
    assert isinstance(press, ButtonPress)
    assert (press.sender.id, press.chat.id, press.chat.is_private) == (str(ANN), str(GROUP), False)


async def test_a_reason_is_asked_for_and_comes_as_a_reply(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    await channel.send(message(target(vendor), card_with_buttons()))
    card_message = last(vendor)
    query = vendor.press(BEA, card_message.id, "Deny")
    press = await next_event(vendor, channel)
    assert press is not None
    ref = await channel.answer(target(vendor), press, InboundAnswer(text="Why?", ask_for=DENY.data))
    prompt = last(vendor)
    assert query.is_answered
    assert (prompt.asks_reply, prompt.reply_to, ref) == (True, card_message.id, f"{BEA}:{prompt.id}")
    vendor.reply(BEA, prompt.id, "too early")
    words = await next_event(vendor, channel)
    assert isinstance(words, ChatMessage)
    assert (words.text, words.reply_to) == ("too early", ref)


async def test_an_answer_that_comes_too_late_for_the_button_is_a_message(
    vendor: TelegramEmulator, channel: TelegramChannel
) -> None:
    await channel.send(message(target(vendor), card_with_buttons()))
    query = vendor.press(BEA, last(vendor).id, "Approve")
    query.is_answered = True
    press = await next_event(vendor, channel)
    assert press is not None
    await channel.answer(target(vendor), press, InboundAnswer(text="Approved."))
    assert last(vendor).text == "Approved."


async def test_it_types_once_after_words_in_a_chat(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    assert isinstance(channel, ActivityChannel)
    for text in ("Hello", "Are you there?"):
        vendor.write(BEA, text)
        event = await next_event(vendor, channel)
        assert isinstance(event, ChatMessage)
        await channel.show_activity(target(vendor), event)
    assert vendor.actions == [(BEA, "typing")]
    assert vendor.history == [], "nothing is sent"


async def test_words_are_answered_under_them(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    words = vendor.write(BEA, "/status")
    event = await next_event(vendor, channel)
    assert isinstance(event, ChatMessage)
    assert (event.text, event.reply_to, event.chat.is_private) == ("/status", None, True)
    await channel.answer(target(vendor), event, InboundAnswer(text="It waits for <Ann>."))
    assert (last(vendor).text, last(vendor).reply_to) == ("It waits for <Ann>.", words.id)
    vendor.block(BEA)
    assert await channel.answer(target(vendor), event, InboundAnswer(text="x")) is None


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("/new@cortex_demo_bot today", "/new today"),
        ("/new@Cortex_Demo_Bot", "/new"),
        ("/new", None),
        ("/new@another_bot", None),
        ("hello all", None),
        ("@cortex_demo_bot how is it?", "how is it?"),
        ("@cortex_demo_bot2 how is it?", None),
        ("write to cortex@cortex_demo_bot", None),
    ],
)
async def test_in_a_group_only_what_names_the_bot_is_for_it(
    vendor: TelegramEmulator, channel: TelegramChannel, text: str, words: str | None
) -> None:
    vendor.add_group(GROUP, "Deploys")
    vendor.write(ANN, text, chat=GROUP)
    event = await next_event(vendor, channel)
    assert (event.text if isinstance(event, ChatMessage) else None) == words


async def test_attachments_are_named(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    photo = [{"file_id": "1", "file_unique_id": "1", "width": 1, "height": 1}]
    vendor.write(BEA, "", fields={"photo": photo, "caption": "look"})
    event = await next_event(vendor, channel)
    assert isinstance(event, ChatMessage)
    assert (event.text, event.attachments) == ("look", ("photo",))


async def test_polls_deliver_and_acknowledge_by_the_cursor(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    vendor.write(BEA, "one")
    arrived: list[tuple[list[str], str | None]] = []
    both = asyncio.Event()

    async def deliver(items: Sequence[InboundItem], cursor: str | None) -> None:
        events = [channel.read(item.payload) for item in items]
        arrived.append(([event.text for event in events if isinstance(event, ChatMessage)], cursor))
        if len(arrived) == 1:
            vendor.write(BEA, "two")
        else:
            both.set()

    task = asyncio.create_task(channel.listen(target(vendor), None, deliver))
    async with asyncio.timeout(10):
        await both.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    (first, cursor), (second, _) = arrived
    assert (first, second) == (["one"], ["two"])
    again = asyncio.create_task(channel.listen(target(vendor), cursor, deliver))
    both.clear()
    async with asyncio.timeout(10):
        await both.wait()
    again.cancel()
    await asyncio.gather(again, return_exceptions=True)
    assert arrived[2][0] == ["two"], "what was not acknowledged comes again"


async def test_a_second_poller_is_told_to_try_again(vendor: TelegramEmulator, channel: TelegramChannel) -> None:
    async def deliver(items: Sequence[InboundItem], cursor: str | None) -> None: ...

    older = asyncio.create_task(channel.listen(target(vendor), None, deliver))
    await vendor.poller.wait()
    newer = asyncio.create_task(channel.listen(target(vendor), None, deliver))
    with pytest.raises(TryAgain, match="terminated by other getUpdates"):
        await older
    newer.cancel()
    await asyncio.gather(newer, return_exceptions=True)
