"""One conversation and its requests over five channels: begun on WhatsApp, gone on with on Telegram, approved on Discord; then denied, escalated,
edited, expired, and pressed too late. Every vendor is an emulator that its own SDK drives in tests/emulators."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any, cast

import asyncpg
import hikari
import httpx
import pytest
import telegram
from hikari.impl import RESTApp
from pywa_async import WhatsApp
from slack_sdk.models.blocks import Block
from slack_sdk.web.async_client import AsyncWebClient

from cortex_plane.approvals.model.approvals import Approval, ApprovalStatus, Channel
from cortex_plane.approvals.verbs import approvals
from cortex_plane.emulators import slack as slack_emulator
from cortex_plane.emulators import telegram as telegram_emulator
from cortex_plane.tenancy.model.orgs import Role
from tests.acceptance.vendor_office import Copies, VendorOffice, vendor_office
from tests.emulators import whatsapp as whatsapp_emulator
from tests.emulators.discord import BOT_TOKEN, message_text
from tests.fixtures.approvals import shown
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import whole

POLICIES = """
policies:
  - name: refunds
    target: refund
    when: args.amount < 1000
    effect: requires_approval
    approvers: {roles: [approver]}
    timeout: 10h
    remind_before: never
    escalate_before: 6h
    escalate_to: [{roles: [operator]}]
  - name: large-refunds
    target: refund
    when: args.amount >= 1000
    effect: requires_approval
    approvers: {roles: [approver]}
    timeout: 10h
    remind_before: never
    quorum: 2
"""
MIA = 7
"""On Telegram."""
BEA, CYD, OLI = "U0BEA", "U0CYD", "U0OLI"
"""On Slack."""
MAILBOX = "bea@example.com"


class Story:
    """Mia, a member, talks to the agent on WhatsApp and Telegram. Bea, an approver, is on Slack and Discord and has mail; Cyd, another one, and
    Oli, an operator, are on Slack."""

    def __init__(self, office: VendorOffice) -> None:
        self.office = office
        self.bea_there = office.discord.user("bea")
        self.mia: Person
        self.bea: Person
        self.cyd: Person

    async def everybody_links_their_accounts(self, admin: asyncpg.Connection) -> None:
        office, world = self.office, self.office.world
        self.mia = await world.person(Role.MEMBER, name="Mia")
        self.bea = await world.person(Role.APPROVER, name="Bea")
        self.cyd = await world.person(Role.APPROVER, name="Cyd")
        oli = await world.person(Role.OPERATOR, name="Oli")
        await apply_policies(world.db, world.admin.actor, POLICIES)
        office.telegram.join(MIA, "Mia")
        office.telegram.write(MIA, f"/link {await office.new_code(self.mia)}")
        await office.confirm_claim(self.mia, "telegram", "Mia")
        await office.write_on_whatsapp("mia", f"/link {await office.new_code(self.mia)}")
        await office.confirm_claim(self.mia, "whatsapp", "Mia")
        for user, name, person in ((BEA, "Bea", self.bea), (CYD, "Cyd", self.cyd), (OLI, "Oli", oli)):
            office.slack.join(user, name)
            office.slack.command(user, f"link {await office.new_code(person)}")
            await office.confirm_claim(person, "slack", name)
        await office.discord.command(self.bea_there, "link", code=await office.new_code(self.bea))
        await office.confirm_claim(self.bea, "discord", "Bea")
        await office.link_mail(admin, self.bea, MAILBOX)

    async def copies(self, order: str) -> Copies:
        """What Bea has of a request, once she has it everywhere."""
        return await self.office.until(lambda: self.office.copies(BEA, self.bea_there, MAILBOX, order))

    async def all_say(self, order: str, words: str) -> Copies:
        """Once every copy says so, in its text of now."""

        def look() -> Copies | None:
            copies = self.office.copies(BEA, self.bea_there, MAILBOX, order)
            return copies if copies and all(words in text for text in copies.texts) else None

        return await self.office.until(look)

    async def telegram_says(self, words: str) -> None:
        await self.office.until(lambda: [text for text in self.office.telegram_texts(MIA) if words in text])

    async def ask(self, order: str, amount: int) -> tuple[Approval, Copies]:
        """Mia asks for a refund on Telegram: the agent stops before it, and Bea has a card everywhere."""
        waits = self.office.telegram_texts(MIA).count("I need an approval before I go on.")
        self.office.telegram.write(MIA, f"Please refund order {order} with {amount} euros")
        asked = await self.office.asked(order)
        copies = await self.copies(order)
        await self.office.until(
            lambda: self.office.telegram_texts(MIA).count("I need an approval before I go on.") > waits
        )
        assert not any(refund.startswith(order) for refund in self.office.desk.refunds)
        return asked, copies

    async def ends(self, asked: Approval, status: ApprovalStatus) -> Approval:
        async def ended() -> Approval | None:
            approval = await shown(self.office.world, asked.id)
            return approval if approval.status is status else None

        ended_approval: Approval = await self.office.until_true(ended)
        return ended_approval

    # The parts.

    async def conversation_goes_on_on_another_channel(self) -> None:
        office = self.office
        await office.write_on_whatsapp("mia", "Hello there")
        await office.until(lambda: "You said: Hello there" in office.whatsapp_texts("mia")[-1])
        asked, copies = await self.ask("A-7", 70)
        assert {"Approve", "Deny"} <= set(copies.buttons)
        assert all('"A-7"' in text and "70" in text for text in copies.texts)
        pressed = await office.discord.press(self.bea_there, copies.discord, "Approve")
        await office.until(lambda: pressed.shown)
        assert pressed.shown == ["Approved."]
        await self.telegram_says("Order A-7 is refunded.")
        ended = await self.ends(asked, ApprovalStatus.APPROVED)
        assert (ended.resolved_via, ended.resolved_by_name) == (Channel.DISCORD, "Bea")
        now = await self.all_say("A-7", "Approved by Bea")
        assert now.buttons == []
        assert office.desk.refunds == ["A-7: 70"]
        assert not any("refunded" in text for text in office.whatsapp_texts("mia")), "she writes on Telegram now"
        # An old screen still shows the buttons that are gone.
        office.slack.press(BEA, copies.slack, "Approve")
        await office.until(lambda: [w for w in office.slack.ephemeral if "approved already by Bea" in w.visible])

    async def one_session_has_it_all(self, admin: asyncpg.Connection) -> None:
        rows = await admin.fetch("select distinct session_id from message where org_id = $1", self.office.world.org_id)
        assert len(rows) == 1
        texts = [row["text"] for row in await admin.fetch("select text from message order by seq")]
        assert texts[:3] == ["Hello there", "You said: Hello there", "Please refund order A-7 with 70 euros"]

    async def denial_needs_a_reason(self) -> None:
        office = self.office
        asked, copies = await self.ask("B-8", 80)
        forms = len(office.slack.views)
        office.slack.press(BEA, copies.slack, "Deny")
        await office.until(lambda: len(office.slack.views) > forms)
        assert (await shown(office.world, asked.id)).status is ApprovalStatus.PENDING
        office.slack.submit(office.slack.views[-1], {"words": "not on a Friday"})
        ended = await self.ends(asked, ApprovalStatus.DENIED)
        assert (ended.resolved_via, ended.resolution_reason) == (Channel.SLACK, "not on a Friday")
        now = await self.all_say("B-8", "not on a Friday")
        assert now.buttons == []
        assert all("Denied by Bea" in text for text in now.texts)
        await self.telegram_says("what it wanted to do was denied")

    async def escalation_asks_somebody_else(self) -> None:
        office = self.office
        asked, copies = await self.ask("C-9", 90)
        assert office.slack_cards(OLI, "C-9") == []
        await office.pass_time(asked, timedelta(hours=6))
        (theirs,) = await office.until(lambda: office.slack_cards(OLI, "C-9"))
        assert "Escalated to you" in theirs.visible
        office.slack.press(OLI, theirs, "Approve")
        ended = await self.ends(asked, ApprovalStatus.APPROVED)
        assert ended.resolved_by_name == "Oli"
        now = await self.all_say("C-9", "Approved by Oli")
        assert now.buttons == []
        await self.telegram_says("Order C-9 is refunded.")
        late = await office.discord.press_data(
            self.bea_there, copies.discord, _approve(copies.discord)
        )  # the message was open before it changed
        await office.until(lambda: late.shown)
        assert "approved already by Oli" in late.shown[-1]

    async def edit_on_the_dashboard_makes_older_buttons_stale(self) -> None:
        office = self.office
        asked, copies = await self.ask("D-1", 1000)
        visitor = await Visitor.log_in(office.http, office.world, self.cyd)
        path = f"/approvals/{asked.id}"
        editor = await visitor.get(f"{path}/edit")
        preview = await visitor.submit(editor, f"{path}/edit", arguments=json.dumps({"order": "D-1", "amount": 1500}))
        assert preview.status_code == 200, preview.text
        done = await visitor.submit(preview, f"{path}/decide", decision="approved")
        assert done.status_code == 303, done.text
        office.http.cookies.clear()
        now = await self.all_say("D-1", "1500")
        office.slack.press(BEA, copies.slack, "Approve")
        await office.until(lambda: [w for w in office.slack.ephemeral if "has changed since" in w.visible])
        approval = await shown(office.world, asked.id)
        assert (approval.status, approval.votes_for) == (ApprovalStatus.PENDING, 1)
        pressed = await office.discord.press(self.bea_there, now.discord, "Approve")
        await office.until(lambda: pressed.shown)
        await self.telegram_says("Order D-1 is refunded.")
        assert office.desk.refunds[-1] == "D-1: 1500"
        ended = await self.all_say("D-1", "Approved by Bea")
        assert ended.buttons == []

    async def expiry_ends_every_copy(self) -> None:
        office = self.office
        asked, copies = await self.ask("E-2", 20)
        await office.pass_time(asked, timedelta())
        await self.ends(asked, ApprovalStatus.EXPIRED)
        now = await self.all_say("E-2", "Expired")
        assert now.buttons == []
        await self.telegram_says("nobody decided in time")
        late = await office.discord.press_data(self.bea_there, copies.discord, _approve(copies.discord))
        await office.until(lambda: late.shown)
        assert "expired already" in late.shown[-1]
        assert not any(refund.startswith("E-2") for refund in office.desk.refunds)

    async def sdks_of_the_vendors_ask_for_what_was_said(self) -> None:
        office = self.office
        updates = [telegram.Update.de_json(update) for kind, update in office.telegram.traffic if kind == "Update"]
        assert [update.effective_user.id for update in updates if update.effective_user] == [MIA] * len(updates)
        sent = [telegram.Message.de_json(message) for kind, message in office.telegram.traffic if kind == "Message"]
        assert any(message.text == "Order D-1 is refunded." for message in sent)
        async with telegram.Bot(telegram_emulator.TOKEN, base_url=f"{office.telegram.url}/bot") as bot:
            webhook = await bot.get_webhook_info()
            assert webhook.url.endswith(f"/v1/connections/{office.connections['telegram']}/inbound")
            assert webhook.pending_update_count == 0, "the plane took everything"
        slack = AsyncWebClient(slack_emulator.BOT_TOKEN, base_url=office.slack.api_url)
        chat = (await slack.conversations_open(users=BEA))["channel"]["id"]
        history = (await slack.conversations_history(channel=chat))["messages"]
        blocks = [Block.parse_all(message["blocks"]) for message in history if message.get("blocks")]
        for message_blocks in blocks:
            for block in message_blocks:
                block.validate_json()
        words = [" ".join(str(block.to_dict()) for block in message_blocks) for message_blocks in blocks]
        assert len([text for text in words if "Approved by" in text]) == 3
        async with httpx.AsyncClient(trust_env=False) as session:
            token, number = whatsapp_emulator.ACCESS_TOKEN, whatsapp_emulator.PHONE_NUMBER_ID
            business = WhatsApp(number, token, session=session, server=None)
            session.base_url = httpx.URL(office.whatsapp.url)
            greeting = office.whatsapp.history(office.whatsapp.person("mia"))[-1]
            await business.send_message(office.whatsapp.person("mia").wa_id, "Seen", reply_to_message_id=greeting["id"])
        assert office.whatsapp_texts("mia")[-1] == "Seen"
        discord = RESTApp(url=office.discord.url)
        await discord.start()
        async with discord.acquire(BOT_TOKEN, hikari.TokenType.BOT) as client:
            cards = [m for m in office.discord.messages_to(self.bea_there) if "Approved by Bea" in message_text(m)]
            for card in cards:
                message = await client.fetch_message(int(card["channel_id"]), int(card["id"]))
                assert "Approved by Bea" in str(message.content)
                parts = [
                    part
                    for row in message.components
                    for part in cast("hikari.ActionRowComponent[hikari.ButtonComponent]", row)
                ]
                assert not any(isinstance(part, hikari.ButtonComponent) and part.custom_id for part in parts)
            assert len(cards) == 2
        await discord.close()

    async def what_comes_twice_or_forged_changes_nothing(self, admin: asyncpg.Connection) -> None:
        office = self.office
        before = await admin.fetchval("select count(*) from channel_event")
        office.telegram.repeat_updates()
        await office.telegram.idle()
        await office.slack.repeat()
        assert await admin.fetchval("select count(*) from channel_event") == before
        assert await office.whatsapp.post(office.whatsapp.webhook(), secret="f" * 32) == 401
        for kind, id in office.connections.items():
            if kind != "email":
                forged = await office.http.post(f"/v1/connections/{id}/inbound", content=b'{"update_id": 1}')
                assert (forged.status_code, forged.json()["code"]) == (401, "event_signature_invalid"), kind
        assert await admin.fetchval("select count(*) from channel_event") == before
        states = await admin.fetch("select distinct status from channel_event")
        assert [row["status"] for row in states] == ["done"]


def _approve(message: dict[str, Any]) -> str:
    buttons = (button for row in message["components"] for button in row["components"])
    return next(str(button["custom_id"]) for button in buttons if button["label"] == "Approve")


@pytest.mark.proves("S4.41", "D.820", "D.822", "D.824", "D.828")
async def test_one_conversation_and_its_requests_over_all_channels(strict: World, admin: asyncpg.Connection) -> None:
    async with vendor_office(strict, admin) as office:
        story = Story(office)
        await story.everybody_links_their_accounts(admin)
        await story.conversation_goes_on_on_another_channel()
        await story.one_session_has_it_all(admin)
        await story.denial_needs_a_reason()
        await story.edit_on_the_dashboard_makes_older_buttons_stale()
        await story.escalation_asks_somebody_else()
        await story.expiry_ends_every_copy()
        await story.sdks_of_the_vendors_ask_for_what_was_said()
        await story.what_comes_twice_or_forged_changes_nothing(admin)
        assert len(office.desk.refunds) == 3
        decided = await approvals.list_approvals(strict.db, strict.admin.actor, None, 10)
        assert len(decided.items) == 5
        assert await whole(strict)
