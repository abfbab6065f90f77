"""The channel to Slack against its emulator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
import pytest_asyncio
from slack_sdk.models.blocks import Block

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.slack import events, history
from cortex_plane.channels.slack.channel import SlackChannel
from cortex_plane.channels.slack.manifest import SCOPES
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.emulators.slack import (
    APP_TOKEN,
    BOT_TOKEN,
    SIGNING_SECRET,
    TEAM,
    SlackEmulator,
    SlackMessage,
    WebApiError,
    sign,
)
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import (
    ButtonPress,
    ChatMessage,
    ConnectionRevoked,
    InboundAnswer,
    InboundItem,
    InboundReply,
    InboundRequest,
)
from cortex_plane.notify.model.notifications import Invitation, Notice, Occasion, Sent, Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs.channel_port import InteractiveChannel
from tests.fixtures.vendor_messages import APPROVE, DENY, NOW, RESPOND, card_with_buttons, message, reply, send_whole

BEA, ANN, DEPLOYS = "U0BEA", "U0ANN", "C0DEPLOYS"


@pytest_asyncio.fixture
async def vendor() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator(first_retry=0).serve() as emulator:
        emulator.join(BEA, "Bea")
        emulator.join(ANN, "Ann")
        emulator.add_channel(DEPLOYS, "deploys")
        yield emulator


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[SlackChannel]:
    channel = SlackChannel(VendorClient(Allowed.parse("127.0.0.1")))
    yield channel
    await channel.close()


def target(vendor: SlackEmulator, address: str = BEA) -> Target:
    config = {"api_url": vendor.api_url, "team_id": TEAM, "bot_user_id": "U0CORTEX", "bot_id": "B0CORTEX"}
    return Target(
        connection_id=UUID(int=3), connection="slack", config=config,
        secrets={"bot_token": BOT_TOKEN, "signing_secret": SIGNING_SECRET}, address=address, member="Bea",
    )  # fmt: skip


async def next_request(vendor: SlackEmulator, kind: str) -> InboundRequest:
    """The newest of this kind that Slack posts."""
    await vendor.idle()
    _, headers, body, _ = next(entry for entry in reversed(vendor.deliveries) if entry[0] == kind)
    return request_of(headers, body)


def request_of(headers: Mapping[str, str], body: bytes, at: datetime | None = None) -> InboundRequest:
    names = {name.lower(): value for name, value in headers.items()}
    return InboundRequest(method="POST", query={}, headers=names, body=body, received_at=at or datetime.now(UTC))


async def next_event(vendor: SlackEmulator, channel: SlackChannel, kind: str) -> Any:
    """What it says, as it comes from the queue."""
    (item,) = channel.receive(target(vendor), await next_request(vendor, kind)).items
    return channel.read(orjson.loads(orjson.dumps(item.payload)))


def last(vendor: SlackEmulator, user: str = BEA) -> SlackMessage:
    return vendor.chat(user)[-1]


def test_it_is_a_channel_on_which_people_act(channel: SlackChannel) -> None:
    assert isinstance(channel, InteractiveChannel)


# Cards.


async def test_a_card_has_buttons_and_all_that_is_decided_on(vendor: SlackEmulator, channel: SlackChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons(arguments='{"note": "<!channel> *x* ```"}')))
    shown = last(vendor)
    assert sent.message_ref == f"{vendor.direct(BEA)}:{shown.ts}"
    assert shown.text == "Approval needed: ship"
    assert shown.visible.startswith("Approval needed\n🟠 HIGH RISK · ship")
    assert '{"note": "<!channel> *x* ```"}' in shown.visible
    assert [button["text"]["text"] for button in shown.buttons] == ["Approve", "Deny", "Respond", "Open"]
    assert [button.get("value") for button in shown.buttons] == [APPROVE.data, DENY.data, RESPOND.data, None]
    assert shown.buttons[-1]["url"] == "https://plane.example/approvals/7"


async def test_no_text_of_others_stands_where_slack_reads_markup(vendor: SlackEmulator, channel: SlackChannel) -> None:
    hostile = "<!channel> <@U0ANN> *bold* https://evil.example"
    await channel.send(
        message(target(vendor), card_with_buttons(agent_says=hostile, asked_for=hostile, target=hostile))
    )
    shown = last(vendor)
    assert {block["type"] for block in shown.blocks} == {"rich_text", "actions"}
    assert "<" not in shown.text
    assert '"mrkdwn"' not in orjson.dumps(shown.blocks).decode()


async def test_the_sdk_takes_every_block(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(message(target(vendor), card_with_buttons(question="Really?", rule_reason="Money")))
    await channel.send(message(target(vendor), reply("# A\n\n- b\n\n1. c\n\n> d\n\n```\ne\n```\n\n**f** `g` ~~h~~")))
    for shown in vendor.chat(BEA):
        for block in Block.parse_all(shown.blocks):
            block.validate_json()


async def test_times_are_in_the_readers_own(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(message(target(vendor), card_with_buttons()))
    parts = [part for element in last(vendor).blocks[0]["elements"] for part in element["elements"]]
    (date,) = [part for part in parts if part["type"] == "date"]
    assert date["timestamp"] == int((NOW + timedelta(hours=2)).timestamp())
    assert date["fallback"] == "2026-05-01 14:00:00 UTC"


@pytest.mark.parametrize("end", ["approved", "denied", "expired", "cancelled"])
async def test_the_same_message_says_how_it_ended_and_has_no_live_button(
    vendor: SlackEmulator, channel: SlackChannel, end: str
) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    ended = card_with_buttons(
        status=ApprovalStatus(end), occasion=Occasion.RESOLVED, resolved_at=NOW, resolved_by="Ann"
    )
    again = await channel.send(message(target(vendor), ended, sent))
    assert again.message_ref == sent.message_ref
    (shown,) = vendor.chat(BEA)
    assert shown.visible.startswith(f"{end.capitalize()} by Ann")
    assert shown.live_buttons == []


@pytest.mark.parametrize("occasion", [Occasion.REMINDED, Occasion.ESCALATED])
async def test_a_reminder_stands_under_the_first_message(
    vendor: SlackEmulator, channel: SlackChannel, occasion: Occasion
) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    again = await channel.send(message(target(vendor), card_with_buttons(occasion=occasion), sent))
    first, note = vendor.chat(BEA)
    assert again.message_ref == sent.message_ref
    assert note.thread == first.ts
    assert note.text.endswith("approval needed: ship")
    assert note.live_buttons == []


async def test_a_card_whose_message_is_gone_is_sent_anew(vendor: SlackEmulator, channel: SlackChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    lost = replace(sent, message_ref=f"{vendor.direct(BEA)}:1.000001")
    again = await channel.send(message(target(vendor), card_with_buttons(), lost))
    assert again.message_ref == f"{vendor.direct(BEA)}:{last(vendor).ts}"


async def test_a_card_may_stand_in_a_shared_channel(vendor: SlackEmulator, channel: SlackChannel) -> None:
    sent = await channel.send(message(target(vendor, "#deploys"), card_with_buttons()))
    (shown,) = vendor.messages(DEPLOYS)
    assert sent.message_ref == f"{DEPLOYS}:{shown.ts}"


async def test_approve_needs_every_argument_whole(vendor: SlackEmulator, channel: SlackChannel) -> None:
    long = card_with_buttons(arguments="x" * 9800)
    assert channel.shows_whole(card_with_buttons(arguments="x" * 4000, original_arguments="y" * 4000))
    assert not channel.shows_whole(card_with_buttons(truncated=True))
    assert not channel.shows_whole(card_with_buttons(redacted=True))
    assert not channel.shows_whole(long)
    await channel.send(message(target(vendor), long))
    assert last(vendor).live_buttons == ["Deny", "Respond"]


async def test_an_invitation_is_a_short_text_and_a_notice_is_none(vendor: SlackEmulator, channel: SlackChannel) -> None:
    invitation = Invitation(
        org="Acme <&>", invited_by="Ann", url="https://plane.example/v/1", expires_at=NOW + timedelta(days=1)
    )
    await channel.send(message(target(vendor), invitation))
    assert "Acme <&>" in last(vendor).visible
    notice = Notice(trigger="x", atlas_id="a", version="1", session_id=UUID(int=3), data={}, happened_at=NOW)
    with pytest.raises(Undeliverable, match="nothing else"):
        await channel.send(message(target(vendor), notice))


# Replies.


async def test_markdown_becomes_rich_text(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(
        message(target(vendor), reply("**Done** <!here>\n\n- [bank](https://evil.example)\n\n```\na < b\n```"))
    )
    (block,) = last(vendor).blocks
    paragraph, items, code = block["elements"]
    assert paragraph["elements"][0] == {"type": "text", "text": "Done", "style": {"bold": True}}
    assert paragraph["elements"][1]["text"] == " <!here>"
    assert items["elements"][0]["elements"][-1]["text"] == " (https://evil.example)"
    assert (code["type"], code["elements"][0]["text"]) == ("rich_text_preformatted", "a < b")
    assert "<!here>" not in last(vendor).text


async def test_a_long_reply_is_split_and_a_growing_one_is_edited(vendor: SlackEmulator, channel: SlackChannel) -> None:
    begun = await channel.send(message(target(vendor), reply("I look", is_final=False)))
    text = "\n\n".join(f"Paragraph {n}. " + "words " * 60 for n in range(30))
    ended = await send_whole(channel, message(target(vendor), reply(text), begun))
    parts = vendor.chat(BEA)
    assert len(parts) > 1
    assert " ".join(part.visible for part in parts).split() == text.split()
    assert ended.message_ref == begun.message_ref


async def test_a_reply_whose_message_is_gone_is_sent_anew(vendor: SlackEmulator, channel: SlackChannel) -> None:
    lost = f"{vendor.direct(BEA)}:1.000001"
    begun = Sent(message_ref=lost, shown={"parts": [[lost, "of other words"]]})
    ended = await channel.send(message(target(vendor), reply("I looked: 7"), begun))
    assert [part.visible.strip() for part in vendor.chat(BEA)] == ["I looked: 7"]
    assert ended.message_ref != begun.message_ref


async def test_a_list_may_begin_with_zero(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(message(target(vendor), reply("0. look\n1. leap")))
    assert all(part.get("offset", 1) > 0 for part in last(vendor).blocks[0]["elements"])


async def test_a_reply_stands_in_the_thread_of_the_mention(vendor: SlackEmulator, channel: SlackChannel) -> None:
    mention = vendor.mention(BEA, DEPLOYS, "how is it?")
    event = await next_event(vendor, channel, "event")
    await channel.send(message(target(vendor, event.chat.id), reply("Well", thread=event.chat.thread)))
    assert vendor.messages(DEPLOYS)[-1].thread == mention.ts


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
    vendor: SlackEmulator, channel: SlackChannel, fault: str, error: type[Exception], values: dict[str, Any]
) -> None:
    vendor.fail(fault)
    with pytest.raises(error) as raised:
        await channel.send(message(target(vendor), card_with_buttons()))
    assert {name: getattr(raised.value, name) for name in values} == values


async def test_an_unknown_person_cannot_be_reached(vendor: SlackEmulator, channel: SlackChannel) -> None:
    with pytest.raises(Undeliverable, match="user_not_found") as raised:
        await channel.send(message(target(vendor, "U9"), card_with_buttons()))
    assert raised.value.address


async def test_an_app_that_was_removed_ends_the_connection(vendor: SlackEmulator, channel: SlackChannel) -> None:
    vendor.is_revoked = True
    with pytest.raises(Undeliverable, match="removed from its workspace") as raised:
        await channel.send(message(target(vendor), card_with_buttons()))
    assert raised.value.gone
    assert BOT_TOKEN not in str(raised.value)


async def test_a_wrong_token_does_not(vendor: SlackEmulator, channel: SlackChannel) -> None:
    where = replace(target(vendor), secrets={"bot_token": "xoxb-wrong"})
    with pytest.raises(Undeliverable, match="does not accept the token") as raised:
        await channel.send(message(where, card_with_buttons()))
    assert not raised.value.gone
    assert not raised.value.address


# The connection.


async def test_a_connection_names_its_workspace_and_what_to_paste(vendor: SlackEmulator, channel: SlackChannel) -> None:
    identity = await channel.identify(target(vendor), "https://plane.example/v1/in/1")
    assert (identity.account, identity.external_id) == ("@cortex in Emulated", "T0EMULATED:B0CORTEX")
    assert identity.config == {"mode": "http", "team_id": TEAM, "bot_user_id": "U0CORTEX", "bot_id": "B0CORTEX"}
    (paste,) = identity.to_do
    manifest = orjson.loads(paste.partition("\n")[2])
    assert manifest["oauth_config"]["scopes"]["bot"] == list(SCOPES)
    assert manifest["settings"]["interactivity"]["request_url"] == "https://plane.example/v1/in/1"
    assert manifest["settings"]["event_subscriptions"]["request_url"] == "https://plane.example/v1/in/1"
    assert manifest["features"]["slash_commands"][0]["url"] == "https://plane.example/v1/in/1"


async def test_without_an_address_there_is_nothing_to_paste(vendor: SlackEmulator, channel: SlackChannel) -> None:
    assert (await channel.identify(target(vendor), None)).to_do == ()


async def test_what_is_wrong_with_a_connection_is_named(vendor: SlackEmulator, channel: SlackChannel) -> None:
    wrong = replace(target(vendor), secrets={"bot_token": "xoxb-wrong", "signing_secret": SIGNING_SECRET})
    with pytest.raises(InvalidInput) as raised:
        await channel.identify(wrong, "https://plane.example/in")
    assert raised.value.details["field"] == "bot_token"
    nowhere = replace(target(vendor), config={"api_url": "http://10.0.0.1"})
    with pytest.raises(InvalidInput) as raised:
        await channel.identify(nowhere, "https://plane.example/in")
    assert raised.value.details["field"] == "api_url"


async def test_the_challenge_of_slack_is_answered(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await vendor.install("")
    received = channel.receive(target(vendor), await next_request(vendor, "url_verification"))
    assert received.reply == InboundReply(body=b"challenge-1")
    assert received.items == ()


# What comes in.


async def test_a_request_that_slack_did_not_sign_is_refused(vendor: SlackEmulator, channel: SlackChannel) -> None:
    vendor.write(BEA, "hello")
    request = await next_request(vendor, "event")
    assert channel.receive(target(vendor), request).items
    forgeries = [
        replace(request, body=request.body + b" "),
        replace(request, headers={**request.headers, "x-slack-signature": "v0=" + "0" * 64}),
        replace(request, headers={**request.headers, "x-slack-request-timestamp": "1"}),
        replace(request, headers={**request.headers, "x-slack-request-timestamp": "x"}),
        replace(request, headers={"content-type": "application/json"}),
        replace(request, received_at=request.received_at + timedelta(seconds=302)),
        replace(request, received_at=request.received_at - timedelta(seconds=302)),
    ]
    for forgery in forgeries:
        with pytest.raises(Unauthenticated):
            channel.receive(target(vendor), forgery)
    with pytest.raises(Unauthenticated):
        channel.receive(replace(target(vendor), secrets={"bot_token": BOT_TOKEN}), request)


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        ("application/json", b""), ("application/json", b"[]"), ("application/json", b"{}"),
        ("application/json", b'{"type": "event_callback", "event_id": ""}'),
        ("application/x-www-form-urlencoded", b""), ("application/x-www-form-urlencoded", b"payload=no"),
        ("application/x-www-form-urlencoded", b"payload=%5B%5D"), ("application/x-www-form-urlencoded", b"\xff"),
    ],
)  # fmt: skip
def test_a_malformed_request_is_invalid(channel: SlackChannel, content_type: str, body: bytes) -> None:
    stamp = str(int(NOW.timestamp()))
    headers = {"content-type": content_type, "x-slack-request-timestamp": stamp,
               "x-slack-signature": sign(SIGNING_SECRET, stamp, body)}  # fmt: skip
    with pytest.raises(InvalidInput):
        channel.receive(target(SlackEmulator()), request_of(headers, body, NOW))


async def test_a_retry_has_the_same_id_and_no_token_is_stored(vendor: SlackEmulator, channel: SlackChannel) -> None:
    vendor.write(BEA, "hello")
    first = channel.receive(target(vendor), await next_request(vendor, "event")).items
    await vendor.repeat()
    second = channel.receive(target(vendor), await next_request(vendor, "event")).items
    assert first == second
    assert "token" not in first[0].payload


async def test_people_of_another_workspace_are_none_of_this_connection(
    vendor: SlackEmulator, channel: SlackChannel
) -> None:
    vendor.write(BEA, "hello")
    request = await next_request(vendor, "event")
    other = replace(target(vendor), config={**target(vendor).config, "team_id": "T0OTHER"})
    assert channel.receive(other, request).items == ()


async def test_a_press_names_who_pressed_what_where(vendor: SlackEmulator, channel: SlackChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    vendor.press(BEA, last(vendor), "Approve")
    press = await next_event(vendor, channel, "interaction")
    assert isinstance(press, ButtonPress)
    assert (press.sender.id, press.sender.name) == (BEA, "bea")
    assert (press.data, press.message_ref, press.note) == (APPROVE.data, sent.message_ref, None)
    assert (press.chat.id, press.chat.is_private) == (BEA, True)
    await channel.answer(target(vendor), press, InboundAnswer(text="Somebody else did."))
    (answer,) = vendor.ephemeral
    assert (answer.only_for, answer.visible.strip()) == (BEA, "Somebody else did.")


async def test_a_press_in_a_channel_is_answered_to_the_person_alone(
    vendor: SlackEmulator, channel: SlackChannel
) -> None:
    await channel.send(message(target(vendor, DEPLOYS), card_with_buttons()))
    vendor.press(ANN, vendor.messages(DEPLOYS)[-1], "Deny")
    press = await next_event(vendor, channel, "interaction")
    assert (press.sender.id, press.chat.id, press.chat.is_private) == (ANN, DEPLOYS, False)
    await channel.answer(target(vendor), press, InboundAnswer(text="You may not."))
    expired = replace(press, answer_to={"channel": DEPLOYS, "response_url": f"{vendor.url}/response/none"})
    await channel.answer(target(vendor), expired, InboundAnswer(text="Still not."))
    assert [(answer.only_for, answer.visible.strip()) for answer in vendor.ephemeral] == [
        (ANN, "You may not."),
        (ANN, "Still not."),
    ]
    assert len(vendor.messages(DEPLOYS)) == 1


async def test_the_link_to_the_dashboard_is_no_press(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(message(target(vendor), card_with_buttons()))
    vendor.press(BEA, last(vendor), "Open")
    assert await next_event(vendor, channel, "interaction") is None


async def test_a_reason_is_asked_for_by_a_form(vendor: SlackEmulator, channel: SlackChannel) -> None:
    sent = await channel.send(message(target(vendor), card_with_buttons()))
    vendor.press(BEA, last(vendor), "Deny")
    press = await next_event(vendor, channel, "interaction")
    prompt = "Why is ship denied?"
    assert await channel.answer(target(vendor), press, InboundAnswer(text=prompt, ask_for=DENY.data)) is None
    (form,) = vendor.views
    assert form.view["title"]["text"] == "Deny"
    assert "Why is ship denied?" in str(form.view["blocks"][0])
    vendor.submit(form, {"words": "too early"})
    words = await next_event(vendor, channel, "interaction")
    assert isinstance(words, ButtonPress)
    assert (words.data, words.note, words.message_ref, words.sender.id) == (
        DENY.data,
        "too early",
        sent.message_ref,
        BEA,
    )
    await channel.answer(target(vendor), words, InboundAnswer(text="Denied."))
    assert vendor.ephemeral[-1].visible.strip() == "Denied."


async def test_a_form_that_is_left_empty_gives_no_reason(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(message(target(vendor), card_with_buttons()))
    vendor.press(BEA, last(vendor), "Deny")
    press = await next_event(vendor, channel, "interaction")
    await channel.answer(target(vendor), press, InboundAnswer(text="Why?", ask_for=DENY.data))
    vendor.submit(vendor.views[0], {})
    assert (await next_event(vendor, channel, "interaction")).note == ""


async def test_a_form_that_comes_too_late_asks_to_press_again(vendor: SlackEmulator, channel: SlackChannel) -> None:
    await channel.send(message(target(vendor), card_with_buttons()))
    vendor.press(BEA, last(vendor), "Deny")
    press = await next_event(vendor, channel, "interaction")
    late = replace(press, answer_to={**press.answer_to, "trigger_id": "1.2.3"})
    await channel.answer(target(vendor), late, InboundAnswer(text="Why?", ask_for=DENY.data))
    assert "Press the button again" in vendor.ephemeral[-1].visible


async def test_direct_messages_are_for_the_agent(vendor: SlackEmulator, channel: SlackChannel) -> None:
    vendor.write(BEA, "is a < b & c?")
    event = await next_event(vendor, channel, "event")
    assert isinstance(event, ChatMessage)
    assert (event.text, event.chat.id, event.chat.is_private) == ("is a < b & c?", BEA, True)
    await channel.answer(target(vendor), event, InboundAnswer(text="Yes."))
    assert last(vendor).visible.strip() == "Yes."
    first = vendor.chat(BEA)[0]
    vendor.write(BEA, "and now?", thread=first.ts)
    event = await next_event(vendor, channel, "event")
    assert (event.reply_to, event.chat.thread) == (f"{vendor.direct(BEA)}:{first.ts}", first.ts)


async def test_a_mention_is_for_the_agent_and_is_answered_to_the_person_alone(
    vendor: SlackEmulator, channel: SlackChannel
) -> None:
    mention = vendor.mention(BEA, DEPLOYS, "how is it?")
    event = await next_event(vendor, channel, "event")
    assert (event.text, event.chat.id, event.chat.is_private) == ("how is it?", DEPLOYS, False)
    await channel.answer(target(vendor), event, InboundAnswer(text="Well."))
    (answer,) = vendor.ephemeral
    assert (answer.only_for, answer.thread) == (BEA, mention.ts)


@pytest.mark.parametrize(("typed", "text"), [("status", "/status"), ("/new today", "/new today"), ("", "/help")])
async def test_a_command_is_private_wherever_it_is_typed(
    vendor: SlackEmulator, channel: SlackChannel, typed: str, text: str
) -> None:
    vendor.command(BEA, typed, channel=DEPLOYS)
    event = await next_event(vendor, channel, "command")
    assert (event.text, event.chat.id, event.chat.is_private, event.sender.name) == (text, BEA, True, "bea")
    await channel.answer(target(vendor), event, InboundAnswer(text="It waits."))
    (answer,) = vendor.ephemeral
    assert (answer.channel, answer.only_for) == (DEPLOYS, BEA)


@pytest.mark.parametrize(
    "more",
    [
        {"bot_id": "B0OTHER"},
        {"user": "U0CORTEX"},
        {"subtype": "message_changed"},
        {"channel_type": "channel"},
        {"user": None},
    ],
)
async def test_what_is_not_for_the_app_is_left_alone(
    vendor: SlackEmulator, channel: SlackChannel, more: dict[str, Any]
) -> None:
    vendor.write(BEA, "hello", fields=more)
    assert await next_event(vendor, channel, "event") is None


@pytest.mark.parametrize("payload", [{}, {"type": "event_callback"}, {"type": "block_actions"}, {"type": "view_submission"},
                                     {"type": "command"}, {"type": "view_submission", "user": {"id": "U1"}, "view": {"callback_id": "cortex_words"}},
                                     {"type": "block_actions", "user": {"id": "U1"}, "actions": ["x"]}])  # fmt: skip
def test_what_concerns_nobody_is_none(channel: SlackChannel, payload: dict[str, Any]) -> None:
    assert channel.read(payload) is None


async def test_files_are_named_and_markup_is_text(vendor: SlackEmulator, channel: SlackChannel) -> None:
    files = [{"id": "F1", "name": "plan.pdf"}]
    text = "see <https://a.example|this> &amp; <@U0ANN> <#C1|deploys> <!here>"
    vendor.write(BEA, "x", fields={"files": files, "subtype": "file_share", "text": text})
    event = await next_event(vendor, channel, "event")
    assert event.attachments == ("plan.pdf",)
    assert event.text == "see this (https://a.example) & @U0ANN #deploys @here"


async def test_a_workspace_that_removes_the_app_revokes_the_connection(
    vendor: SlackEmulator, channel: SlackChannel
) -> None:
    vendor.uninstall()
    event = await next_event(vendor, channel, "event")
    assert event == ConnectionRevoked(reason="The app was removed from its workspace.")


# Socket Mode.


def socket_target(vendor: SlackEmulator, **secrets: str) -> Target:
    return replace(target(vendor), secrets={"bot_token": BOT_TOKEN, "app_token": APP_TOKEN, **secrets})


async def test_socket_mode_needs_no_address(vendor: SlackEmulator, channel: SlackChannel) -> None:
    identity = await channel.identify(socket_target(vendor), None)
    assert identity.config["mode"] == "socket"
    manifest = orjson.loads(identity.to_do[0].partition("\n")[2])
    assert manifest["settings"]["socket_mode_enabled"] is True
    assert "url" not in manifest["features"]["slash_commands"][0]
    with pytest.raises(InvalidInput) as raised:
        await channel.identify(socket_target(vendor, app_token="xapp-wrong"), None)
    assert raised.value.details["field"] == "app_token"


async def test_without_socket_mode_the_signing_secret_is_needed(vendor: SlackEmulator, channel: SlackChannel) -> None:
    with pytest.raises(InvalidInput) as raised:
        await channel.identify(replace(target(vendor), secrets={"bot_token": BOT_TOKEN}), "https://plane.example/in")
    assert raised.value.details["field"] == "signing_secret"


async def test_a_socket_delivers_and_acknowledges_what_was_stored(vendor: SlackEmulator, channel: SlackChannel) -> None:
    """The second event is stored in the second connection, because the first one failed to store it."""
    where = socket_target(vendor)
    await channel.identify(where, None)
    texts: asyncio.Queue[str] = asyncio.Queue()
    failures = 1

    async def deliver(items: Sequence[InboundItem], cursor: str | None) -> None:
        nonlocal failures
        events = [channel.read(item.payload) for item in items]
        if "/status" in [event.text for event in events if isinstance(event, ChatMessage)] and failures:
            failures -= 1
            raise TryAgain("The database is away.")
        for event in events:
            texts.put_nowait(event.text if isinstance(event, ChatMessage) else type(event).__name__)

    async with asyncio.timeout(20):
        task = asyncio.create_task(channel.listen(where, None, deliver))
        vendor.write(BEA, "hello")
        assert await texts.get() == "hello"
        vendor.command(BEA, "status")
        with pytest.raises(TryAgain, match="database is away"):
            await task
        task = asyncio.create_task(channel.listen(where, None, deliver))
        assert await texts.get() == "/status"
        await channel.send(message(where, card_with_buttons()))
        vendor.press(BEA, last(vendor), "Approve")
        assert await texts.get() == "ButtonPress"
        await vendor.refresh_socket()
        vendor.write(BEA, "again")
        assert await texts.get() == "again"
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert len(vendor.acknowledged) >= 3


class Inbox:
    """What was stored, once for each id, as the plane does."""

    def __init__(self, channel: SlackChannel) -> None:
        self.texts: dict[str, str] = {}
        self.cursor: str | None = None
        self.grew = asyncio.Event()
        self._channel = channel

    async def deliver(self, items: Sequence[InboundItem], cursor: str | None) -> None:
        self.cursor = cursor or self.cursor
        for item in items:
            event = self._channel.read(item.payload)
            assert isinstance(event, ChatMessage)
            self.texts.setdefault(item.event_id, event.text)
        self.grew.set()

    async def holds(self, *texts: str) -> None:
        async with asyncio.timeout(20):
            while sorted(self.texts.values()) != sorted(texts):
                self.grew.clear()
                await self.grew.wait()


async def test_what_was_written_while_nobody_was_connected_is_read_once(
    vendor: SlackEmulator, channel: SlackChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(history, "PAGE", 2)
    where, inbox = socket_target(vendor), Inbox(channel)
    await channel.identify(where, None)
    first = asyncio.create_task(channel.listen(where, None, inbox.deliver))
    vendor.write(BEA, "before")
    await inbox.holds("before")
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    for number in range(5):
        vendor.write(BEA, f"meanwhile {number}")
    for name in ("CAL", "DEE", "EVE"):
        vendor.write(f"U0{name}", f"from {name}")
    await channel.send(message(where, card_with_buttons()))
    await vendor.idle()
    vendor.forget_socket()
    assert inbox.cursor is not None
    begin = inbox.cursor.partition(".")[0]  # the emulator counts within a second
    second = asyncio.create_task(channel.listen(where, begin, inbox.deliver))
    texts = ["before", *(f"meanwhile {number}" for number in range(5)), "from CAL", "from DEE", "from EVE"]
    await inbox.holds(*texts)
    vendor.write(ANN, "after")
    await inbox.holds(*texts, "after")
    of_bea = [text for id, text in inbox.texts.items() if vendor.direct(BEA) in id]
    assert of_bea == texts[:6], "oldest first"
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)


async def test_what_is_older_than_the_connection_is_not_read(vendor: SlackEmulator, channel: SlackChannel) -> None:
    where, inbox = socket_target(vendor), Inbox(channel)
    await channel.identify(where, None)
    vendor.write(BEA, "to nobody")
    await vendor.idle()
    vendor.forget_socket()
    task = asyncio.create_task(channel.listen(where, None, inbox.deliver))
    vendor.write(BEA, "to the plane")
    await inbox.holds("to the plane")
    assert not [kind for kind, _ in vendor.traffic if kind.startswith("conversations.")]
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_history_that_cannot_be_read_keeps_nobody_from_being_heard(
    vendor: SlackEmulator, channel: SlackChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Any) -> dict[str, Any]:
        raise WebApiError("missing_scope", needed="im:read")

    monkeypatch.setattr(vendor, "_list_channels", refuse)
    where, inbox = socket_target(vendor), Inbox(channel)
    await channel.identify(where, None)
    task = asyncio.create_task(channel.listen(where, "1.0", inbox.deliver))
    vendor.write(BEA, "hello")
    await inbox.holds("hello")
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_cursor_over_http_waits_until_the_history_of_every_chat_was_read(
    vendor: SlackEmulator, channel: SlackChannel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More chats than one look reads, then a chat that is too long."""
    monkeypatch.setattr(history, "MOST_CHATS", 2)
    where, inbox = target(vendor), Inbox(channel)
    where = replace(where, config={**where.config, "mode": "http"})
    names = ("BEA", "ANN", "CAL", "DEE", "EVE")
    for name in names:
        vendor.write(f"U0{name}", f"from {name}")
    await vendor.idle()
    rests: list[tuple[int, str | None]] = []

    async def rest(seconds: float) -> None:
        rests.append((len(inbox.texts), inbox.cursor))
        if seconds == history.LOOK_SECONDS or len(rests) > 9:
            raise asyncio.CancelledError

    monkeypatch.setattr(history, "_rest", rest)
    with pytest.raises(asyncio.CancelledError):
        await channel.listen(where, "1.0", inbox.deliver)
    assert rests[:2] == [(2, None), (4, None)]
    assert [count for count, _ in rests[2:]] == [len(names)]
    assert inbox.cursor is not None
    monkeypatch.setattr(history, "PAGE", 1)
    monkeypatch.setattr(history, "MOST_PAGES", 1)
    vendor.write("U0EVE", "one more than fits")
    await vendor.idle()
    rests.clear()
    inbox.cursor = None
    with pytest.raises(asyncio.CancelledError):
        await channel.listen(where, "1.0", inbox.deliver)
    assert len(rests) > 9
    assert inbox.cursor is None


@pytest.mark.parametrize("method", ["_list_channels", "_history"])
async def test_history_that_slack_refuses_is_an_error_of_the_connection(
    vendor: SlackEmulator, channel: SlackChannel, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    def refuse(_: Any) -> dict[str, Any]:
        raise WebApiError("missing_scope", needed="im:history")

    where, inbox = target(vendor), Inbox(channel)
    vendor.write(BEA, "hello")
    await vendor.idle()
    monkeypatch.setattr(vendor, method, refuse)
    with pytest.raises(Undeliverable, match="the app needs the scope im:history"):
        async with asyncio.timeout(20):
            await channel.listen(replace(where, config={**where.config, "mode": "http"}), "1.0", inbox.deliver)
    assert inbox.cursor is None


def test_event_and_history_name_a_message_alike() -> None:
    config = {"team_id": TEAM}
    where = Target(connection_id=UUID(int=3), connection="slack", config=config, secrets={}, address="", member="")
    written = {"type": "message", "user": BEA, "text": "hello", "ts": "17.000001"}
    event = {**written, "channel": "D0BEA", "channel_type": "im"}
    content = {"type": "event_callback", "team_id": TEAM, "event_id": "Ev1"}

    def item(event: dict[str, Any]) -> InboundItem:
        (only,) = events.read_envelope(where, {"type": "events_api", "payload": {**content, "event": event}})
        return only

    (by_history,) = events.history_items(where, "D0BEA", written)
    assert item(event).event_id == by_history.event_id == "message:D0BEA:17.000001"
    assert events.read_payload(item(event).payload) == events.read_payload(by_history.payload)
    assert events.history_items(where, "D0BEA", {**written, "bot_id": "B1"}) == ()
    assert item({**event, "subtype": "message_changed"}).event_id == "Ev1"


@pytest.mark.parametrize("url", ["ws://10.0.0.1/x", "wss://127.0.0.1:1/x", "http://127.0.0.1/x", "x"])
async def test_a_socket_goes_nowhere_that_a_request_may_not(
    vendor: SlackEmulator, channel: SlackChannel, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.setattr(vendor, "_open_socket", lambda _: {"url": url})

    async def deliver(items: Sequence[InboundItem], cursor: str | None) -> None: ...

    with pytest.raises((TryAgain, Undeliverable)):
        await channel.listen(socket_target(vendor), None, deliver)
