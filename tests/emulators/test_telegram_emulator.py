"""The emulator of Telegram, driven and parsed by the SDK python-telegram-bot."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from datetime import timedelta

import httpx
import orjson
import pytest
import pytest_asyncio
import telegram
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from telegram.error import BadRequest, Conflict, Forbidden, InvalidToken, NetworkError, RetryAfter

from cortex_plane.emulators.server import serving
from cortex_plane.emulators.telegram import TOKEN, TelegramEmulator
from cortex_plane.emulators.telegram_markup import MarkupError, read_html

ANN, BEA = 7, 8


@pytest_asyncio.fixture
async def vendor() -> AsyncIterator[TelegramEmulator]:
    async with TelegramEmulator(first_retry=0.01).serve() as emulator:
        emulator.join(ANN, "Ann")
        yield emulator


@pytest_asyncio.fixture
async def bot(vendor: TelegramEmulator) -> AsyncIterator[telegram.Bot]:
    async with telegram.Bot(TOKEN, base_url=f"{vendor.url}/bot") as bot:
        yield bot


async def test_the_sdk_reads_who_the_bot_is(bot: telegram.Bot) -> None:
    me = await bot.get_me()
    assert (me.username, me.is_bot, me.can_join_groups) == ("cortex_demo_bot", True, True)


async def test_a_wrong_token_is_refused(vendor: TelegramEmulator) -> None:
    bot = telegram.Bot("1:wrong", base_url=f"{vendor.url}/bot")
    with pytest.raises(InvalidToken):
        await bot.initialize()
    await bot.shutdown()


async def test_the_sdk_sends_a_message_with_buttons_and_reads_the_press(
    vendor: TelegramEmulator, bot: telegram.Bot
) -> None:
    buttons = telegram.InlineKeyboardMarkup(
        [[telegram.InlineKeyboardButton("Approve", callback_data="c1:a"), telegram.InlineKeyboardButton("Open", url="https://plane.example/x")]]
    )  # fmt: skip
    message = await bot.send_message(ANN, "<b>Hi</b> &lt;you&gt;", parse_mode="HTML", reply_markup=buttons)
    assert message.text == "Hi <you>"
    assert message.entities[0].type == "bold"
    assert message.reply_markup == buttons
    query = vendor.press(ANN, message.message_id, "Approve")
    (update,) = await bot.get_updates(timeout=5)
    assert update.callback_query is not None
    assert (update.callback_query.data, update.callback_query.from_user.id) == ("c1:a", ANN)
    assert await update.callback_query.answer("Thank you", show_alert=True)
    assert (query.is_answered, query.text, query.is_alert) == (True, "Thank you", True)
    edited = await bot.edit_message_text("Approved", ANN, message.message_id)
    assert isinstance(edited, telegram.Message)
    assert (edited.text, edited.reply_markup) == ("Approved", None)
    assert vendor.live_buttons(ANN) == []
    assert [state.text for state in vendor.history] == ["Hi <you>", "Approved"]


async def test_updates_are_confirmed_by_the_offset(vendor: TelegramEmulator, bot: telegram.Bot) -> None:
    vendor.write(ANN, "/start")
    vendor.write(ANN, "hello")
    first, second = await bot.get_updates()
    assert first.message is not None
    assert first.message.entities[0].type == "bot_command"
    assert [update.update_id for update in await bot.get_updates(offset=second.update_id)] == [second.update_id]
    assert await bot.get_updates(offset=second.update_id + 1) == ()


async def test_a_poll_waits_for_what_is_written_meanwhile(vendor: TelegramEmulator, bot: telegram.Bot) -> None:
    poll = asyncio.create_task(bot.get_updates(timeout=20))
    await vendor.poller.wait()
    vendor.write(ANN, "hello")
    (update,) = await poll
    assert update.message is not None
    assert update.message.text == "hello"


async def test_the_older_of_two_pollers_gets_a_conflict(vendor: TelegramEmulator, bot: telegram.Bot) -> None:
    older = asyncio.create_task(bot.get_updates(timeout=20))
    await vendor.poller.wait()
    async with telegram.Bot(TOKEN, base_url=f"{vendor.url}/bot") as second:
        await second.get_updates(timeout=0)
    with pytest.raises(Conflict, match="terminated by other getUpdates"):
        await older


async def test_no_updates_are_polled_while_a_webhook_is_set(bot: telegram.Bot) -> None:
    await bot.set_webhook("https://plane.example/in")
    with pytest.raises(Conflict, match="webhook is active"):
        await bot.get_updates()
    await bot.delete_webhook()
    assert await bot.get_updates() == ()


async def test_a_webhook_gets_its_secret_and_is_tried_again_until_it_takes(
    vendor: TelegramEmulator, bot: telegram.Bot
) -> None:
    requests: list[tuple[str, int]] = []

    async def take(request: Request) -> Response:
        update = telegram.Update.de_json(orjson.loads(await request.body()), bot)
        requests.append((request.headers["x-telegram-bot-api-secret-token"], update.update_id))
        return Response(status_code=500 if len(requests) < 3 else 204)

    async with serving(Starlette(routes=[Route("/in", take, methods=["POST"])])) as url:
        await bot.set_webhook(f"{url}/in", secret_token="s3cret")
        vendor.write(ANN, "one")
        vendor.write(ANN, "two")
        await vendor.idle()
        info = await bot.get_webhook_info()
    assert [secret for secret, _ in requests] == ["s3cret"] * 4
    ids = [id for _, id in requests]
    assert ids == [ids[0]] * 3 + [ids[0] + 1]
    assert info.pending_update_count == 0
    assert info.last_error_message == "Wrong response from the webhook: 500 Internal Server Error"


async def test_the_errors_are_telegrams(vendor: TelegramEmulator, bot: telegram.Bot) -> None:
    with pytest.raises(BadRequest, match="Chat not found"):
        await bot.send_message(99, "hi")
    with pytest.raises(BadRequest, match="Can't parse entities: unsupported start tag"):
        await bot.send_message(ANN, "<script>", parse_mode="HTML")
    with pytest.raises(BadRequest, match="Message is too long"):
        await bot.send_message(ANN, "x" * 4097)
    with pytest.raises(BadRequest, match="Button_data_invalid"):
        await bot.send_message(
            ANN, "x", reply_markup=telegram.InlineKeyboardMarkup.from_button(telegram.InlineKeyboardButton("a", callback_data="x" * 65)),
        )  # fmt: skip
    with pytest.raises(BadRequest, match="is invalid: wrong http url"):
        await bot.send_message(
            ANN, "x", reply_markup=telegram.InlineKeyboardMarkup.from_button(telegram.InlineKeyboardButton("a", url="http://localhost/x")),
        )  # fmt: skip
    with pytest.raises(BadRequest, match="Message to be replied not found"):
        await bot.send_message(ANN, "x", reply_to_message_id=12345)
    message = await bot.send_message(ANN, "x")
    with pytest.raises(BadRequest, match="Message is not modified"):
        await bot.edit_message_text("x", ANN, message.message_id)
    with pytest.raises(BadRequest, match="Message to edit not found"):
        await bot.edit_message_text("y", ANN, 12345)
    with pytest.raises(BadRequest, match="Query is too old"):
        await bot.answer_callback_query("1")
    vendor.block(ANN)
    with pytest.raises(Forbidden, match="blocked by the user"):
        await bot.send_message(ANN, "hi")


async def test_a_press_can_be_answered_for_a_while_only() -> None:
    clock = [1_000_000.0]
    async with TelegramEmulator(now=lambda: clock[0]).serve() as vendor:
        vendor.join(ANN)
        async with telegram.Bot(TOKEN, base_url=f"{vendor.url}/bot") as bot:
            markup = telegram.InlineKeyboardMarkup.from_button(telegram.InlineKeyboardButton("a", callback_data="x"))
            message = await bot.send_message(ANN, "x", reply_markup=markup)
            query = vendor.press(ANN, message.message_id, "a")
            clock[0] += 16
            with pytest.raises(BadRequest, match="Query is too old"):
                await bot.answer_callback_query(query.id)


async def test_faults_come_as_often_as_they_were_asked_for(
    vendor: TelegramEmulator, bot: telegram.Bot, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PTB_TIMEDELTA", "1")
    vendor.fail("flood")
    vendor.fail("down")
    vendor.fail("lost_answer")
    with pytest.raises(RetryAfter) as flood:
        await bot.send_message(ANN, "1")
    assert flood.value.retry_after == timedelta(seconds=7)
    for text in ("2", "3"):
        with pytest.raises(NetworkError, match="Bad Gateway"):
            await bot.send_message(ANN, text)
    await bot.send_message(ANN, "4")
    assert [message.text for message in vendor.chat(ANN)] == ["3", "4"]


@pytest.mark.parametrize("kind", ["json", "form", "multipart", "query"])
async def test_parameters_come_in_four_forms(vendor: TelegramEmulator, kind: str) -> None:
    url = f"{vendor.url}/bot{TOKEN}/sendMessage"
    values = {"chat_id": str(ANN), "text": "a & b", "reply_markup": '{"force_reply": true}'}
    async with httpx.AsyncClient(trust_env=False) as client:
        match kind:
            case "json":
                answer = await client.post(url, json=values)
            case "form":
                answer = await client.post(url, data=values)
            case "multipart":
                answer = await client.post(url, files={name: (None, value) for name, value in values.items()})
            case _:
                answer = await client.get(url, params=values)
    assert answer.json()["ok"] is True
    (message,) = vendor.chat(ANN)
    assert (message.text, message.asks_reply) == ("a & b", True)


def test_html_is_read_with_offsets_in_utf_16() -> None:
    text, entities = read_html('🟠<b>bold <i>both</i></b> <a href="https://x.example?a=1&amp;b=2">link</a>')
    assert text == "🟠bold both link"
    assert entities == [
        {"type": "bold", "offset": 2, "length": 9},
        {"type": "italic", "offset": 7, "length": 4},
        {"type": "text_link", "offset": 12, "length": 4, "url": "https://x.example?a=1&b=2"},
    ]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("a <img src=x>", 'Unsupported start tag "img" at byte offset 2'),
        ("<b>open", 'Can\'t find end tag corresponding to start tag "b"'),
        ("</b>", "Unexpected end tag at byte offset 0"),
        ("<b><i>x</b></i>", 'Unmatched end tag at byte offset 7, expected "</i>", found "</b>"'),
        ("1 < 2", "Unsupported start tag"),
    ],
)
def test_html_that_telegram_refuses(source: str, problem: str) -> None:
    with pytest.raises(MarkupError, match=problem.replace("(", r"\(")):
        read_html(source)
