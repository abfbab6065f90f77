"""WhatsApp passes what every channel must pass."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any
from uuid import UUID

import asyncpg
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.channels.whatsapp import WhatsAppChannel
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.notify.verbs.inbound import VendorRequest
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import ConnectionDraft, Mapping
from cortex_plane.tenancy.verbs import connections, links
from cortex_plane.tenancy.verbs.served_channels import ServedChannels
from tests.channels.behaviour import PUBLIC_URL, Arrived, Failure
from tests.channels.door import status_in
from tests.channels.interactive_behaviour import InteractiveSuite, SeenMessage
from tests.channels.outage_behaviour import OutageSuite
from tests.channels.streaming_behaviour import LongReplySuite
from tests.emulators.vendor_server import VendorFault
from tests.emulators.whatsapp import (
    ACCESS_TOKEN,
    APP_SECRET,
    PHONE_NUMBER_ID,
    WhatsAppEmulator,
    buttons_of,
    graph_error,
    text_of,
    urls_of,
)
from tests.fixtures.approvals import shown
from tests.fixtures.people import World

_FAULTS = {
    Failure.TEMPORARY: VendorFault(status=503),
    Failure.PERMANENT: VendorFault(status=400, body=graph_error(131026, "Message undeliverable")),
    Failure.HANG: VendorFault(hangs=True),
    Failure.LOST_ANSWER: VendorFault(status=502, is_late=True),
    Failure.NO_ANSWER: VendorFault(hangs=True, is_late=True),
    Failure.RATE_LIMITED: VendorFault(status=400, body=graph_error(130429, "Rate limit hit")),
    Failure.REVOKED: VendorFault(status=401, body=graph_error(190, "Error validating access token")),
}


class WhatsAppStage:
    """A message of the business that quotes what a person did is an answer to them. No message can be changed: the buttons of one are
    over when a later message quotes it."""

    redelivers = True
    pause = timedelta(seconds=5)
    """Meta names none with 130429."""

    def __init__(self, whatsapp: WhatsAppEmulator, channel: WhatsAppChannel) -> None:
        self.channel = channel
        self.whatsapp = whatsapp

    async def connect(self, world: World) -> UUID:
        secrets = {"access_token": ACCESS_TOKEN, "app_secret": APP_SECRET}
        config = {"api_url": self.whatsapp.url, "phone_number_id": PHONE_NUMBER_ID}
        draft = ConnectionDraft(
            channel_type="whatsapp", name="whatsapp", config=config, secrets=secrets, agent=world.agent.slug
        )
        served = ServedChannels(vendors={"whatsapp": self.channel})
        return (await connections.create_connection(world.db, world.admin.actor, draft, channels=served)).id

    def address(self, name: str) -> str:
        return self.whatsapp.person(name).wa_id

    async def arrived(self) -> list[Arrived]:
        return [self._arrived(message) for message in self.whatsapp.sent]

    def _arrived(self, message: dict[str, Any]) -> Arrived:
        text, quoted = text_of(message), message.get("context", {}).get("message_id")
        # A copy that WhatsApp took, and whose answer was lost, is a thread that nobody else continues.
        return Arrived(
            address=message["to"],
            thread=quoted or (message["id"] if not self.loses else "lost"),
            status=status_in(text),
            text=text,
            urls=urls_of(message),
        )

    loses = False

    def fail(self, how: Failure, times: int) -> None:
        self.loses = self.loses or how is Failure.LOST_ANSWER
        self.whatsapp.fail(_FAULTS[how], times)

    async def messages(self) -> list[SeenMessage]:
        quoted = {message.get("context", {}).get("message_id") for message in self.whatsapp.sent}
        return [
            SeenMessage(
                ref=message["id"],
                chat=message["to"],
                text=text_of(message),
                buttons={}
                if message["id"] in quoted
                else {button["title"]: button["id"] for button in buttons_of(message)},
            )
            for message in self.whatsapp.sent
            if not self._answers(message)
        ]

    def _answers(self, message: dict[str, Any]) -> bool:
        acts = {act["id"] for person in self.whatsapp.people.values() for act in person.messages}
        return message.get("context", {}).get("message_id") in acts

    async def answers(self, name: str) -> list[str]:
        history = self.whatsapp.history(self.whatsapp.person(name))
        return [text_of(message) for message in history if self._answers(message)]

    async def press(self, name: str, message: SeenMessage, label: str, *, private: bool = True) -> VendorRequest:
        return self._request(self.whatsapp.tap_data(name, message.ref, message.buttons[label], label))

    async def press_data(self, name: str, message: SeenMessage, data: str) -> VendorRequest:
        return self._request(self.whatsapp.tap_data(name, message.ref, data))

    async def words(self, name: str, text: str) -> VendorRequest:
        question = [m for m in self.whatsapp.history(self.whatsapp.person(name)) if self._answers(m)][-1]
        return self._request(self.whatsapp.text(name, text, reply_to=question["id"]))

    async def write(
        self, name: str, text: str, *, private: bool = True, attachments: tuple[str, ...] = ()
    ) -> VendorRequest:
        if attachments:
            return self._request(self.whatsapp.attach(name, attachments[0], text))
        return self._request(self.whatsapp.text(name, text, group=None if private else "Y2FwaV9ncm91cDo"))

    def _request(self, message: dict[str, Any]) -> VendorRequest:
        body = self.whatsapp.webhook(message)
        return VendorRequest("POST", {}, self.whatsapp.signed(body), body)

    def forge(self, request: VendorRequest) -> VendorRequest:
        return replace(request, headers=self.whatsapp.signed(request.body, "f" * 32))


@asynccontextmanager
async def whatsapp_stage() -> AsyncIterator[WhatsAppStage]:
    async with WhatsAppEmulator().serve() as whatsapp:
        channel = WhatsAppChannel(VendorClient(Allowed.parse("127.0.0.1")))
        yield WhatsAppStage(whatsapp, channel)
        await channel.close()


class TestWhatsApp(OutageSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[WhatsAppStage]:
        async with whatsapp_stage() as stage:
            yield stage


class TestWhatsAppInteractive(InteractiveSuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[WhatsAppStage]:
        async with whatsapp_stage() as stage:
            yield stage

    async def test_more_shows_the_whole_request_and_decides_nothing(
        self, strict: World, admin: asyncpg.Connection, stage: WhatsAppStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        asked, message = await self._asked(plane, to="production", note="x" * 1500)
        assert set(message.buttons) == {"Deny", "Respond", "More"}
        await plane.take(await stage.press("bea", message, "More"))
        whole = "".join(await stage.answers("bea"))
        assert "x" * 1500 in whole
        assert f"{PUBLIC_URL}/approvals/{asked.id}" in whole
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING

    async def test_more_is_for_those_who_see_the_request(
        self, strict: World, admin: asyncpg.Connection, stage: WhatsAppStage
    ) -> None:
        plane = await self._plane(strict, admin, stage)
        _, message = await self._asked(plane)
        for name, words in (("mia", "not one of those"), ("sam", "do not know who you are")):
            await plane.take(await stage.press(name, message, "More"))
            (answer,) = await stage.answers(name)
            assert words in answer
            assert "production" not in answer

    @pytest.mark.proves("D.822")
    async def test_number_that_passed_to_somebody_else_loses_its_link(
        self, strict: World, admin: asyncpg.Connection, stage: WhatsAppStage
    ) -> None:
        """A telephone company gives a number away again: its new owner decides nothing."""
        plane = await self._plane(strict, admin, stage)
        await connections.unlink_own(strict.db, self.bea.actor, (await self._own_mapping(strict)).id)
        code = await links.issue_link_code(strict.db, self.bea.actor)
        await plane.take(await stage.write("bea", f"/link {code.code}"))
        (claim,) = await links.list_own_claims(strict.db, self.bea.actor)
        await links.confirm_link(strict.db, self.bea.actor, claim.id)
        asked, message = await self._asked(plane)
        stage.whatsapp.person("bea").user_id += "99"
        await plane.take(await stage.press("bea", message, "Approve"))
        assert (await shown(strict, asked.id)).status is ApprovalStatus.PENDING
        assert "do not know who you are" in (await stage.answers("bea"))[-1]
        assert (await connections.list_own_mappings(strict.db, self.bea.actor, None, 10)).items == []
        entries = await audit.list_entries(strict.db, strict.admin.actor, None, 0, 1000)
        unlinked = [entry.body for entry in entries if entry.action == "identity_unlinked"][-1]
        assert unlinked is not None
        assert unlinked["data"]["reason"] == "the channel names another owner"

    async def _own_mapping(self, world: World) -> Mapping:
        (mapping,) = (await connections.list_own_mappings(world.db, self.bea.actor, None, 10)).items
        return mapping


class TestWhatsAppLongReplies(LongReplySuite):
    @pytest_asyncio.fixture
    async def stage(self) -> AsyncIterator[WhatsAppStage]:
        async with whatsapp_stage() as stage:
            yield stage
