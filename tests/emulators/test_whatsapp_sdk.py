"""pywa, an SDK for WhatsApp's Cloud API, drives the emulator and reads what it sends: the emulator speaks as WhatsApp does."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from pywa import errors
from pywa_async import WhatsApp, types
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from tests.emulators.vendor_server import VendorFault, served_on_loopback
from tests.emulators.whatsapp import (
    ACCESS_TOKEN,
    APP_SECRET,
    PHONE_NUMBER_ID,
    WhatsAppEmulator,
    buttons_of,
    graph_error,
)


@pytest_asyncio.fixture
async def whatsapp() -> AsyncIterator[WhatsAppEmulator]:
    async with WhatsAppEmulator().serve() as emulator:
        yield emulator


class Business:
    """pywa with its handlers, behind an address."""

    def __init__(self, session: httpx.AsyncClient, url: str) -> None:
        self.client = WhatsApp(
            PHONE_NUMBER_ID, ACCESS_TOKEN, session=session, server=None, verify_token="check", app_secret=APP_SECRET
        )
        session.base_url = httpx.URL(url)
        self.updates: list[Any] = []
        self.url = ""
        for register in (self.client.on_message, self.client.on_callback_button, self.client.on_message_status):
            register()(self._note)

    async def _note(self, _: WhatsApp, update: Any) -> None:
        self.updates.append(update)

    async def handle(self, request: Request) -> Response:
        if request.method == "GET":
            query = request.query_params
            text, status = await self.client.webhook_challenge_handler(
                query["hub.verify_token"], query["hub.challenge"]
            )
            return Response(text, status)
        body = await request.body()
        refusal = await self.client.webhook_update_validator(body, request.headers.get("x-hub-signature-256"))
        text, status = refusal or await self.client.webhook_update_handler(body)
        return Response(text, status)


@pytest_asyncio.fixture
async def business(whatsapp: WhatsAppEmulator) -> AsyncIterator[Business]:
    async with httpx.AsyncClient(trust_env=False) as session:
        made = Business(session, whatsapp.url)
        async with served_on_loopback(Starlette(routes=[Route("/", made.handle, methods=["GET", "POST"])])) as origin:
            made.url = f"{origin}/"
            assert await whatsapp.subscribe(made.url, "check") == 200
            yield made


async def test_the_sdk_reads_the_number(whatsapp: WhatsAppEmulator, business: Business) -> None:
    number = await business.client.get_business_phone_number()
    assert (number.id, number.verified_name) == (PHONE_NUMBER_ID, "Cortex")


async def test_the_sdk_sends_text_buttons_and_templates(whatsapp: WhatsAppEmulator, business: Business) -> None:
    ada = whatsapp.person("ada")
    buttons = [types.Button("Approve", callback_data="c1:a:x"), types.Button("Deny", callback_data="c1:d:x")]
    card = await business.client.send_message(ada.wa_id, "Approval needed", buttons=buttons)
    await business.client.send_message(ada.wa_id, "Approved by Bea", reply_to_message_id=card.id)
    first, second = whatsapp.history(ada)
    assert [button["title"] for button in buttons_of(first)] == ["Approve", "Deny"]
    assert second["context"] == {"message_id": first["id"]}
    whatsapp.templates["request", "en_US"] = 0
    await business.client.send_template(ada.wa_id, "request", types.templates.TemplateLanguage.ENGLISH_US, [])
    assert whatsapp.history(ada)[-1]["template"]["name"] == "request"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(131047, errors.ReEngagementMessage), (130429, errors.RateLimitHit), (190, errors.ExpiredAccessToken), (131026, errors.MessageUndeliverable)],
)  # fmt: skip
async def test_the_sdk_reads_its_errors(
    whatsapp: WhatsAppEmulator, business: Business, code: int, expected: type[errors.WhatsAppError]
) -> None:
    ada = whatsapp.person("ada")
    match code:
        case 131047:
            ada.has_window = False
        case 190:
            whatsapp.token = "another"
        case 131026:
            ada.wa_id = "16505559999"
        case _:
            whatsapp.fail(VendorFault(status=429, body=graph_error(code, "Rate limit hit")))
    with pytest.raises(expected):
        await business.client.send_message("16505550001", "Hello")


async def test_the_sdk_reads_what_people_write_and_press(whatsapp: WhatsAppEmulator, business: Business) -> None:
    ada = whatsapp.person("ada")
    card = await business.client.send_message(
        ada.wa_id, "Approval needed", buttons=[types.Button("Approve", callback_data="c1:a:x")]
    )
    for event in (whatsapp.text("ada", "Hello"), whatsapp.tap("ada", whatsapp.history(ada)[0], "Approve")):
        assert await whatsapp.post(whatsapp.webhook(event)) == 200
    words, press = business.updates
    assert isinstance(words, types.Message)
    assert (words.text, words.from_user.wa_id, words.from_user.bsuid) == ("Hello", ada.wa_id, ada.user_id)
    assert isinstance(press, types.CallbackButton)
    assert (press.data, press.title) == ("c1:a:x", "Approve")
    assert press.reply_to_message is not None
    assert press.reply_to_message.id == card.id


async def test_the_sdk_shows_that_it_types(whatsapp: WhatsAppEmulator, business: Business) -> None:
    assert await whatsapp.post(whatsapp.webhook(whatsapp.text("ada", "Hello"))) == 200
    (words,) = business.updates
    await business.client.indicate_typing(words.id)
    assert whatsapp.typing == [words.id]
    with pytest.raises(errors.WhatsAppError):
        await business.client.indicate_typing("wamid.unknown")


async def test_the_sdk_reads_somebody_without_a_number(whatsapp: WhatsAppEmulator, business: Business) -> None:
    whatsapp.person("bea").shows_number = False
    assert await whatsapp.post(whatsapp.webhook(whatsapp.text("bea", "Hello"))) == 200
    (words,) = business.updates
    assert words.from_user.wa_id is None
    assert words.from_user.bsuid == whatsapp.person("bea").user_id


async def test_the_sdk_reads_a_report_of_a_failure(whatsapp: WhatsAppEmulator, business: Business) -> None:
    ada = whatsapp.person("ada")
    ada.has_window, whatsapp.reports_late = False, True
    sent = await business.client.send_message(ada.wa_id, "Hello")
    assert await whatsapp.post(whatsapp.webhook(statuses=tuple(whatsapp.late_reports))) == 200
    (report,) = business.updates
    assert isinstance(report, types.MessageStatus)
    assert (report.id, report.status) == (sent.id, types.MessageStatusType.FAILED)
    assert isinstance(report.error, errors.ReEngagementMessage)


async def test_the_sdk_refuses_what_another_secret_signed(whatsapp: WhatsAppEmulator, business: Business) -> None:
    body = whatsapp.webhook(whatsapp.text("ada", "Hello"))
    assert await whatsapp.post(body, secret="f" * 32) == 403
    assert business.updates == []
    assert await whatsapp.subscribe(business.url, "another") == 403
