"""WhatsApp: the channel against its emulator, over HTTP with real signatures."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import orjson
import pytest
import pytest_asyncio

from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.whatsapp import WhatsAppChannel, cards
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model.channels import (
    ButtonAction,
    ButtonPress,
    ChatMessage,
    ConnectionRevoked,
    DeliveryReport,
    InboundAnswer,
    InboundRequest,
    read_button,
)
from cortex_plane.notify.model.notifications import ChatReply, Occasion, Target, TryAgain, Undeliverable
from cortex_plane.notify.verbs.channel_port import ActivityChannel, InteractiveChannel, MoreChannel
from tests.channels.door import NOTIFICATION, NOW, URL, Door, approved, card, open_door, outgoing, target
from tests.emulators.vendor_server import VendorFault
from tests.emulators.whatsapp import (
    ACCESS_TOKEN,
    APP_SECRET,
    BUSINESS_ID,
    PHONE_NUMBER_ID,
    WhatsAppEmulator,
    buttons_of,
    graph_error,
    text_of,
)
from tests.fixtures.vendor_messages import send_whole

APPROVE, DENY, RESPOND = ButtonAction.APPROVE, ButtonAction.DENY, ButtonAction.RESPOND


@pytest_asyncio.fixture
async def whatsapp() -> AsyncIterator[WhatsAppEmulator]:
    async with WhatsAppEmulator().serve() as emulator:
        yield emulator


@pytest_asyncio.fixture
async def channel() -> AsyncIterator[WhatsAppChannel]:
    made = WhatsAppChannel(VendorClient(Allowed.parse("127.0.0.1")))
    yield made
    await made.close()


def at(whatsapp: WhatsAppEmulator, address: str = "", **config: str) -> Target:
    config = {"api_url": whatsapp.url, "phone_number_id": PHONE_NUMBER_ID, **config}
    secrets = {"access_token": ACCESS_TOKEN, "app_secret": APP_SECRET, "verify_token": "check"}
    return target(address, config, secrets)


def to_ada(whatsapp: WhatsAppEmulator, **config: str) -> Target:
    return at(whatsapp, whatsapp.person("ada").wa_id, **config)


@pytest_asyncio.fixture
async def door(whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> AsyncIterator[Door]:
    async with open_door(channel, at(whatsapp)) as opened:
        assert await whatsapp.subscribe(opened.url, "check") == 200
        yield opened


def shown_to(whatsapp: WhatsAppEmulator, name: str = "ada") -> list[dict[str, Any]]:
    return whatsapp.history(whatsapp.person(name))


def titles(message: dict[str, Any]) -> list[str]:
    return [button["title"] for button in buttons_of(message)]


def test_it_is_a_channel_with_more(channel: WhatsAppChannel) -> None:
    assert isinstance(channel, InteractiveChannel)
    assert isinstance(channel, MoreChannel)


class TestSetUp:
    async def test_says_what_to_enter_at_meta(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        new = replace(at(whatsapp), secrets={"access_token": ACCESS_TOKEN, "app_secret": APP_SECRET})
        identity = await channel.identify(new, "https://plane.example/in")
        assert (identity.account, identity.external_id) == ("+1 555-078-3881 (Cortex)", PHONE_NUMBER_ID)
        token = identity.secrets["verify_token"]
        assert "https://plane.example/in" in identity.to_do[0]
        assert token in identity.to_do[0]
        again = await channel.identify(
            replace(new, secrets={**new.secrets, **identity.secrets}), "https://plane.example/in"
        )
        assert again.secrets["verify_token"] == token
        assert identity.config == {"business_account": BUSINESS_ID}

    async def test_nothing_is_left_once_meta_posts_here(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        assert (await channel.identify(door.target, door.url)).to_do == ()

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"access_token": "x" * 30}, "secrets.access_token"),
            ({"app_secret": "f" * 32}, "secrets.app_secret"),
            ({}, "config.phone_number_id"),
        ],
    )
    async def test_a_wrong_value_names_its_field(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, change: dict[str, str], field: str
    ) -> None:
        to = at(whatsapp, **({} if change else {"phone_number_id": "99999"}))
        with pytest.raises(InvalidInput) as refusal:
            await channel.identify(replace(to, secrets={**to.secrets, **change}), None)
        assert refusal.value.details["field"] == field
        for secret in (ACCESS_TOKEN, APP_SECRET, *change.values()):
            assert secret not in str(refusal.value)

    async def test_the_address_is_verified_with_the_token(self, whatsapp: WhatsAppEmulator, door: Door) -> None:
        assert await whatsapp.subscribe(door.url, "another") == 401
        assert await whatsapp.subscribe(door.url, "") == 401

    async def test_without_a_verify_token_nobody_is_verified(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        query = {"hub.mode": "subscribe", "hub.verify_token": "", "hub.challenge": "1"}
        request = InboundRequest(method="GET", query=query, headers={}, body=b"", received_at=NOW)
        with pytest.raises(Unauthenticated):
            channel.receive(replace(at(whatsapp), secrets={}), request)


class TestCards:
    async def test_shows_the_request_with_three_buttons(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        sent = await channel.send(outgoing(to_ada(whatsapp), card(APPROVE, DENY, RESPOND)))
        (message,) = shown_to(whatsapp)
        assert sent.message_ref == message["id"]
        assert titles(message) == ["Approve", "Deny", "More"]
        text = text_of(message)
        order = [
            text.index(part)
            for part in ("HIGH RISK", "refund", "amount", "customer waits", "refunds@1", "Expires", URL)
        ]
        assert order == sorted(order)

    async def test_approve_needs_the_whole_of_the_arguments(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        fits = card(APPROVE, DENY, RESPOND, arguments="x" * 200, agent_says="y" * 3000)
        assert channel.shows_whole(fits)
        long = replace(fits, arguments="x" * 900)
        for never in (long, replace(fits, truncated=True), replace(fits, redacted=True)):
            assert not channel.shows_whole(never)
        await channel.send(outgoing(to_ada(whatsapp), fits))
        await channel.send(outgoing(to_ada(whatsapp), long, version=2))
        first, second = shown_to(whatsapp)
        assert "x" * 200 in text_of(first)
        assert titles(second) == ["Deny", "Respond", "More"]
        assert URL in text_of(second)

    async def test_text_of_others_is_no_markup(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        hostile = "*bold* ~gone~ _slanted_ `code` refund_order"
        await channel.send(outgoing(to_ada(whatsapp), card(DENY, agent_says=hostile, arguments='"```*x*"')))
        text = text_of(shown_to(whatsapp)[0])
        for live in ("*bold*", "~gone~", "_slanted_", "`code`"):
            assert live not in text
        assert "refund_order" in text
        assert text.count("```") == 2, "the arguments do not leave their block"

    async def test_the_outcome_quotes_the_card(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        first = await channel.send(outgoing(to_ada(whatsapp), card(APPROVE, DENY)))
        more = {"earlier": first.message_ref, "shown": first.shown, "version": 2}
        sent = await channel.send(outgoing(to_ada(whatsapp), approved(), **more))
        _, outcome = shown_to(whatsapp)
        assert outcome["context"] == {"message_id": first.message_ref}
        assert "Approved by Bea" in text_of(outcome)
        assert "fine" in text_of(outcome)
        assert titles(outcome) == []
        assert sent.message_ref == first.message_ref
        assert not channel.concerns(approved(), sent.shown), "it is said once"

    async def test_what_calls_again_is_a_card_that_quotes_the_first(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        first = await channel.send(outgoing(to_ada(whatsapp), card(APPROVE, DENY)))
        again = card(APPROVE, DENY, occasion=Occasion.REMINDED)
        assert channel.concerns(again, first.shown)
        more = {"earlier": first.message_ref, "shown": first.shown, "version": 2}
        second = await channel.send(outgoing(to_ada(whatsapp), again, **more))
        _, reminder = shown_to(whatsapp)
        assert second.message_ref == reminder["id"], "the outcome will quote what can be pressed last"
        assert reminder["context"] == {"message_id": first.message_ref}
        assert "Reminder" in text_of(reminder)
        assert titles(reminder) == ["Approve", "Deny", "More"]

    async def test_a_vote_alone_is_no_message(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        first = await channel.send(outgoing(to_ada(whatsapp), card(APPROVE)))
        assert not channel.concerns(card(APPROVE, occasion=Occasion.CHANGED, votes_needed=2), first.shown)
        assert channel.concerns(card(APPROVE, occasion=Occasion.CHANGED, input_hash="b" * 64), first.shown)

    async def test_what_its_person_has_already_is_not_sent_again(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        first = await channel.send(outgoing(to_ada(whatsapp), card(APPROVE)))
        more = {"earlier": first.message_ref, "shown": first.shown, "version": 2}
        assert await channel.send(outgoing(to_ada(whatsapp), card(APPROVE), **more)) == first
        assert len(shown_to(whatsapp)) == 1

    async def test_a_person_without_a_number_is_reached_by_their_user_id(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        bea = whatsapp.person("bea")
        await channel.send(outgoing(at(whatsapp, bea.user_id), card(DENY)))
        (message,) = whatsapp.history(bea)
        assert message["recipient"] == bea.user_id
        assert "to" not in message

    def test_a_long_card_that_asks_again_has_its_whole_link(self) -> None:
        for length in range(400, 700):
            asked = card(APPROVE, DENY, occasion=Occasion.ESCALATED, arguments="x" * length)
            message = cards.card_message(asked, NOTIFICATION, NOW, is_first=False)
            text = message["interactive"]["body"]["text"]
            assert text.startswith("*Escalated further")
            assert text.endswith(f"\n{URL}")
            assert len(text) <= cards.MAX_BODY


class TestWindow:
    async def test_after_a_day_a_template_is_sent(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        whatsapp.person("ada").has_window = False
        whatsapp.templates["cortex_request", "de"] = 3
        to = to_ada(whatsapp, template="cortex_request", template_language="de")
        sent = await channel.send(outgoing(to, card(APPROVE, DENY, target="order\n7")))
        (message,) = shown_to(whatsapp)
        assert text_of(message).startswith(f"high refund_order order 7 {URL}")
        payload = message["template"]["components"][1]["parameters"][0]["payload"]
        button = read_button(payload)
        assert button is not None
        assert button.action is ButtonAction.MORE
        outcome = await channel.send(outgoing(to, approved(), earlier=sent.message_ref, shown=sent.shown, version=2))
        assert outcome.message_ref == sent.message_ref
        assert len(shown_to(whatsapp)) == 1, "the link of the template leads to the outcome"

    async def test_without_a_template_it_says_why(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        whatsapp.person("ada").has_window = False
        with pytest.raises(Undeliverable) as error:
            await channel.send(outgoing(to_ada(whatsapp), card(DENY)))
        assert "24 hours" in error.value.message
        assert not error.value.address
        assert not error.value.gone

    async def test_a_connection_may_always_begin_with_the_template(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        whatsapp.templates["cortex_request", "en_US"] = 3
        to = to_ada(whatsapp, template="cortex_request", first_message="template")
        await channel.send(outgoing(to, card(APPROVE)))
        assert [message["type"] for message in shown_to(whatsapp)] == ["template"]

    async def test_a_template_that_does_not_exist_says_so(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        whatsapp.person("ada").has_window = False
        with pytest.raises(Undeliverable, match="132001"):
            await channel.send(outgoing(to_ada(whatsapp, template="unknown"), card(DENY)))

    async def test_a_failure_that_is_reported_later_says_why(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        whatsapp.person("ada").has_window, whatsapp.reports_late = False, True
        sent = await channel.send(outgoing(to_ada(whatsapp), card(DENY)))
        delivered = whatsapp.status(whatsapp.person("ada"), sent.message_ref or "", "delivered")
        body = whatsapp.webhook(statuses=(*whatsapp.late_reports, delivered, *whatsapp.late_reports))
        assert await whatsapp.post(body) == 200
        (report,) = door.events()
        assert isinstance(report, DeliveryReport)
        assert report.message_ref == sent.message_ref
        assert "24 hours" in report.problem


class TestErrors:
    @pytest.mark.parametrize(("code", "seconds"), [(130429, 5), (131056, 6), (80007, 60)])
    async def test_a_rate_limit_is_waited_for(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, code: int, seconds: float
    ) -> None:
        whatsapp.fail(VendorFault(status=400, body=graph_error(code, "Rate limit hit")))
        with pytest.raises(TryAgain) as error:
            await channel.send(outgoing(to_ada(whatsapp), card(DENY)))
        assert error.value.after_seconds == seconds
        assert error.value.only_chat == (code == 131056)

    async def test_trouble_at_meta_is_tried_again(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        for fault in (
            VendorFault(status=503, body="<html>"),
            VendorFault(status=500, body=graph_error(131000, "Something")),
        ):
            whatsapp.fail(fault)
            with pytest.raises(TryAgain):
                await channel.send(outgoing(to_ada(whatsapp), card(DENY)))

    async def test_a_token_that_was_revoked_ends_the_connection(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        whatsapp.token = "another"
        with pytest.raises(Undeliverable) as error:
            await channel.send(outgoing(to_ada(whatsapp), card(DENY)))
        assert error.value.gone
        assert ACCESS_TOKEN not in str(error.value)

    @pytest.mark.parametrize("address", ["16505559999", "somebody@example.com"])
    async def test_somebody_who_is_not_there_is_an_address_that_fails(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, address: str
    ) -> None:
        with pytest.raises(Undeliverable) as error:
            await channel.send(outgoing(at(whatsapp, address), card(DENY)))
        assert error.value.address


class TestInbound:
    async def test_a_press_names_its_button_and_message(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        await channel.send(outgoing(to_ada(whatsapp), card(APPROVE, DENY)))
        (message,) = shown_to(whatsapp)
        assert await whatsapp.post(whatsapp.webhook(whatsapp.tap("ada", message, "Approve"))) == 200
        (press,) = door.events()
        assert isinstance(press, ButtonPress)
        ada = whatsapp.person("ada")
        assert (press.sender.id, press.sender.name, press.sender.owner) == (ada.wa_id, "Ada", ada.user_id)
        assert (press.message_ref, press.note, press.chat.is_private) == (message["id"], None, True)
        button = read_button(press.data)
        assert button is not None
        assert button.action is APPROVE

    async def test_a_reason_is_a_reply_to_the_question(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        await channel.send(outgoing(to_ada(whatsapp), card(DENY)))
        press = whatsapp.tap("ada", shown_to(whatsapp)[0], "Deny")
        await whatsapp.post(whatsapp.webhook(press))
        (event,) = door.events()
        assert isinstance(event, ButtonPress)
        ref = await channel.answer(door.target, event, InboundAnswer(text="Why?", ask_for=event.data))
        question = shown_to(whatsapp)[-1]
        assert (question["id"], question["context"]) == (ref, {"message_id": press["id"]})
        await whatsapp.post(whatsapp.webhook(whatsapp.text("ada", "too much", reply_to=ref)))
        reason = door.events()[-1]
        assert isinstance(reason, ChatMessage)
        assert (reason.text, reason.reply_to) == ("too much", ref)
        assert await channel.answer(door.target, event, InboundAnswer(text="Denied.")) is None

    async def test_a_webhook_carries_several_events_and_each_counts_once(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        events = [whatsapp.text("ada", "one"), whatsapp.text("bea", "two"), whatsapp.text("ada", "three")]
        for _ in range(2):
            assert await whatsapp.post(whatsapp.webhook(*events)) == 200
        texts = [(event.sender.name, event.text) for event in door.events() if isinstance(event, ChatMessage)]
        assert texts == [("Ada", "one"), ("Bea", "two"), ("Ada", "three")]

    async def test_each_sender_has_their_own_name_where_meta_gives_no_user_ids(
        self, whatsapp: WhatsAppEmulator, door: Door
    ) -> None:
        """One change may have the messages of several people."""
        body = orjson.loads(whatsapp.webhook(whatsapp.text("ada", "one"), whatsapp.text("bea", "two")))
        first, second = (change["value"] for change in body["entry"][0]["changes"])
        for name in ("contacts", "messages"):
            first[name] += second[name]
        body["entry"][0]["changes"].pop()
        for contact, message in zip(first["contacts"], first["messages"], strict=True):
            del contact["user_id"], message["from_user_id"]
        assert await whatsapp.post(orjson.dumps(body)) == 200
        names = [event.sender.name for event in door.events() if isinstance(event, ChatMessage)]
        assert names == ["Ada", "Bea"]

    async def test_without_an_app_secret_nothing_is_believed(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        body = whatsapp.webhook(whatsapp.text("ada", "Hello"))
        signature = hmac.new(b"", body, hashlib.sha256).hexdigest()
        headers = {"x-hub-signature-256": f"sha256={signature}"}
        request = InboundRequest(method="POST", query={}, headers=headers, body=body, received_at=NOW)
        with pytest.raises(Unauthenticated):
            channel.receive(replace(at(whatsapp), secrets={}), request)

    @pytest.mark.parametrize(("state", "ends"), [("DISABLE", 1), ("SCHEDULE_FOR_DISABLE", 0), ("REINSTATE", 0)])
    async def test_only_an_account_that_is_disabled_ends_the_connection(
        self, whatsapp: WhatsAppEmulator, door: Door, state: str, ends: int
    ) -> None:
        value = {"event": "DISABLED_UPDATE", "ban_info": {"waba_ban_state": state}}
        change = {"field": "account_update", "value": value}
        body = {"object": "whatsapp_business_account", "entry": [{"id": BUSINESS_ID, "time": 1, "changes": [change]}]}
        assert await whatsapp.post(orjson.dumps(body)) == 200
        assert len(door.events()) == ends

    @pytest.mark.parametrize(("days", "items"), [(7, 1), (9, 0)])
    async def test_an_old_message_is_not_believed(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, days: int, items: int
    ) -> None:
        """Whoever has an old webhook could send it again once its id is forgotten."""
        body = whatsapp.webhook(whatsapp.text("ada", "Hello"))
        later = datetime.now(UTC) + timedelta(days=days)
        request = InboundRequest(method="POST", query={}, headers=whatsapp.signed(body), body=body, received_at=later)
        assert len(channel.receive(at(whatsapp), request).items) == items

    async def test_another_number_of_the_app_is_none_of_ours(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        body = whatsapp.webhook(whatsapp.text("ada", "one")).replace(PHONE_NUMBER_ID.encode(), b"222222222")
        assert await whatsapp.post(body) == 200
        assert door.items == {}

    async def test_it_types_below_a_message_once_in_a_chat(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        assert isinstance(channel, ActivityChannel)
        events = [whatsapp.text("ada", "one"), whatsapp.text("ada", "two"), whatsapp.text("bea", "three")]
        group = whatsapp.text("ada", "four", group="Y2FwaV9ncm91cDo")
        await whatsapp.post(whatsapp.webhook(*events, group))
        for event in door.events():
            assert isinstance(event, ChatMessage)
            await channel.show_activity(door.target, event)
        assert whatsapp.typing == [events[0]["id"], events[2]["id"]]
        assert shown_to(whatsapp) == [], "nothing is sent"

    async def test_a_file_is_an_attachment(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        await whatsapp.post(whatsapp.webhook(whatsapp.attach("ada", "plan.pdf", "Look")))
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        assert (event.text, event.attachments) == ("Look", ("plan.pdf",))

    async def test_somebody_without_a_number_is_their_user_id(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        bea = whatsapp.person("bea")
        bea.shows_number = False
        await whatsapp.post(whatsapp.webhook(whatsapp.text("bea", "Hello")))
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        assert (event.sender.id, event.chat.id) == (bea.user_id, bea.user_id)
        await channel.answer(door.target, event, InboundAnswer(text="Hello Bea"))
        assert text_of(shown_to(whatsapp, "bea")[-1]) == "Hello Bea"

    async def test_a_group_is_not_private(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        await whatsapp.post(whatsapp.webhook(whatsapp.text("ada", "Hello", group="Y2FwaV9ncm91cDo")))
        (event,) = door.events()
        assert isinstance(event, ChatMessage)
        assert (event.chat.id, event.chat.is_private) == ("group:Y2FwaV9ncm91cDo", False)
        await channel.answer(door.target, event, InboundAnswer(text="Hello all"))
        assert (whatsapp.sent[-1]["recipient_type"], whatsapp.sent[-1]["to"]) == ("group", "Y2FwaV9ncm91cDo")

    async def test_an_account_that_was_taken_away_ends_the_connection(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        change = {"field": "account_update", "value": {"event": "PARTNER_REMOVED"}}
        body = {"object": "whatsapp_business_account", "entry": [{"id": BUSINESS_ID, "time": 1, "changes": [change]}]}
        assert await whatsapp.post(orjson.dumps(body)) == 200
        assert isinstance(door.events()[0], ConnectionRevoked)

    @pytest.mark.parametrize(
        ("sender", "info", "items"),
        [
            (BUSINESS_ID, {}, 1),
            ("102290129340399", {}, 0),
            ("506914307656634", {"waba_info": {"waba_id": BUSINESS_ID}}, 1),
            (BUSINESS_ID, {"waba_info": {"waba_id": "102290129340399"}}, 0),
        ],
    )
    async def test_another_account_of_the_app_does_not_end_the_connection(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, sender: str, info: dict[str, Any], items: int
    ) -> None:
        change = {"field": "account_update", "value": {"event": "PARTNER_REMOVED", **info}}
        content = {"object": "whatsapp_business_account", "entry": [{"id": sender, "time": 1, "changes": [change]}]}
        body = orjson.dumps(content)
        request = InboundRequest(method="POST", query={}, headers=whatsapp.signed(body), body=body, received_at=NOW)
        assert len(channel.receive(at(whatsapp, business_account=BUSINESS_ID), request).items) == items

    async def test_a_bad_signature_is_refused(self, whatsapp: WhatsAppEmulator, door: Door) -> None:
        body = whatsapp.webhook(whatsapp.text("ada", "Hello"))
        assert await whatsapp.post(body, secret="f" * 32) == 401
        assert door.items == {}

    @pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"entry":[{"changes":[{"field":"messages","value":{}}]}]}'])
    async def test_what_is_signed_and_malformed_is_bad_input(
        self, whatsapp: WhatsAppEmulator, door: Door, body: bytes
    ) -> None:
        assert await whatsapp.post(body) == 400


class TestMore:
    async def test_more_sends_the_whole_request(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        long = card(DENY, arguments="x" * 3800, agent_says="y" * 900)
        await channel.send(outgoing(to_ada(whatsapp), long))
        await whatsapp.post(whatsapp.webhook(whatsapp.tap("ada", shown_to(whatsapp)[0], "More")))
        (press,) = door.events()
        assert isinstance(press, ButtonPress)
        await channel.show_more(door.target, press, long)
        _, *rest = shown_to(whatsapp)
        whole = "".join(map(text_of, rest))
        assert whole.count("x") >= 3800
        assert "y" * 900 in whole
        assert URL in whole
        assert [message["type"] for message in rest] == ["text", "text"]

    async def test_more_of_a_template_brings_the_buttons(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel, door: Door
    ) -> None:
        whatsapp.templates["cortex_request", "en_US"] = 3
        request = card(APPROVE, DENY)
        to = to_ada(whatsapp, template="cortex_request", first_message="template")
        await channel.send(outgoing(to, request))
        (sent,) = shown_to(whatsapp)
        payload = sent["template"]["components"][1]["parameters"][0]["payload"]
        tap = whatsapp.tap_data("ada", sent["id"], payload, "Show")
        tap |= {"type": "button", "button": {"payload": payload, "text": "Show"}}
        del tap["interactive"]
        await whatsapp.post(whatsapp.webhook(tap))
        (press,) = door.events()
        assert isinstance(press, ButtonPress)
        await channel.show_more(door.target, press, request)
        assert titles(shown_to(whatsapp)[-1]) == ["Approve", "Deny", "More"]


class TestReplies:
    async def test_long_replies_are_split_and_markdown_is_translated(
        self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel
    ) -> None:
        text = "**Done**, see [our page](https://evil.example).\n\n" + "A sentence of words. " * 300
        await send_whole(channel, outgoing(to_ada(whatsapp), ChatReply(agent="support", text=text)))
        messages = shown_to(whatsapp)
        assert len(messages) == 2
        assert text_of(messages[0]).startswith("*Done*, see our page (https://evil.example).")
        assert not any(message["text"]["preview_url"] for message in messages)
