"""The emulator of Slack, driven by slack_sdk, and its requests verified and parsed by slack_bolt."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
from slack_bolt import App, BoltRequest
from slack_sdk import WebClient
from slack_sdk.errors import SlackApiError
from slack_sdk.models.blocks import ActionsBlock, Block, ButtonElement, SectionBlock
from slack_sdk.signature import SignatureVerifier
from slack_sdk.socket_mode.builtin import SocketModeClient
from slack_sdk.socket_mode.client import BaseSocketModeClient
from slack_sdk.socket_mode.request import SocketModeRequest
from slack_sdk.socket_mode.response import SocketModeResponse
from slack_sdk.webhook import WebhookClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from cortex_plane.emulators.server import serving
from cortex_plane.emulators.slack import APP_TOKEN, BOT_TOKEN, SIGNING_SECRET, SlackEmulator

BEA = "U0BEA"
BLOCKS: list[Block] = [
    SectionBlock(text="*Deploy?*"),
    ActionsBlock(
        block_id="actions", elements=[ButtonElement(text="Approve", action_id="cortex_approve", value="c1:a")]
    ),
]


@pytest_asyncio.fixture
async def vendor() -> AsyncIterator[SlackEmulator]:
    async with SlackEmulator(first_retry=0).serve() as emulator:
        emulator.join(BEA, "Bea")
        emulator.add_channel("C0DEPLOYS", "deploys")
        yield emulator


async def call(vendor: SlackEmulator, method: str, token: str = BOT_TOKEN, **values: Any) -> Any:
    """By the SDK, which blocks its thread."""
    client = WebClient(token, base_url=vendor.api_url, retry_handlers=[])
    return await asyncio.to_thread(getattr(client, method), **values)


async def error_of(vendor: SlackEmulator, method: str, **values: Any) -> str:
    with pytest.raises(SlackApiError) as raised:
        await call(vendor, method, **values)
    return str(raised.value.response["error"])


@pytest_asyncio.fixture
async def bolt(vendor: SlackEmulator) -> AsyncIterator[tuple[App, list[BoltRequest]]]:
    """An app of slack_bolt behind a real address, installed."""
    client = WebClient(BOT_TOKEN, base_url=vendor.api_url)
    app = await asyncio.to_thread(App, signing_secret=SIGNING_SECRET, client=client, process_before_response=True)
    requests: list[BoltRequest] = []

    async def take(request: Request) -> Response:
        body = (await request.body()).decode()
        bolt_request = BoltRequest(body=body, headers=dict(request.headers))
        requests.append(bolt_request)
        answer = await asyncio.to_thread(app.dispatch, bolt_request)
        headers = {name: values[0] for name, values in answer.headers.items()}
        return Response(answer.body, answer.status, headers)

    async with serving(Starlette(routes=[Route("/slack", take, methods=["POST"])])) as url:
        assert await vendor.install(f"{url}/slack")
        yield app, requests


async def test_the_sdk_sends_changes_and_reads_messages(vendor: SlackEmulator) -> None:
    assert (await call(vendor, "auth_test"))["bot_id"] == "B0CORTEX"
    channel = (await call(vendor, "conversations_open", users=BEA))["channel"]["id"]
    sent = await call(vendor, "chat_postMessage", channel=channel, text="Deploy?", blocks=BLOCKS)
    assert sent["message"]["text"] == "Deploy?"
    await call(vendor, "chat_update", channel=channel, ts=sent["ts"], text="Approved", blocks=[])
    history = await call(vendor, "conversations_history", channel=channel)
    assert [message["text"] for message in history["messages"]] == ["Approved"]
    assert [state.text for state in vendor.history] == ["Deploy?", "Approved"]
    await call(vendor, "chat_postEphemeral", channel=channel, user=BEA, text="Only you")
    assert [(message.only_for, message.text) for message in vendor.ephemeral] == [(BEA, "Only you")]
    assert (await call(vendor, "users_info", user=BEA))["user"]["real_name"] == "Bea"


async def test_a_channel_is_found_by_its_name_and_a_person_by_their_id(vendor: SlackEmulator) -> None:
    assert (await call(vendor, "chat_postMessage", channel="#deploys", text="x"))["channel"] == "C0DEPLOYS"
    assert (await call(vendor, "chat_postMessage", channel=BEA, text="x"))["channel"] == "D0BEA"


async def test_the_errors_are_slacks(vendor: SlackEmulator) -> None:
    assert await error_of(vendor, "chat_postMessage", channel="C9", text="x") == "channel_not_found"
    empty = {"api_method": "chat.postMessage", "json": {"channel": BEA}}
    assert await error_of(vendor, "api_call", **empty) == "no_text"
    assert await error_of(vendor, "chat_postMessage", channel=BEA, text="x", thread_ts="1.1") == "thread_not_found"
    assert await error_of(vendor, "chat_postMessage", channel=BEA, text="x" * 40_001) == "msg_too_long"
    assert await error_of(vendor, "chat_update", channel=BEA, ts="1.1", text="x") == "message_not_found"
    assert await error_of(vendor, "conversations_open", users="U9") == "user_not_found"
    assert await error_of(vendor, "views_open", trigger_id="1.2.3", view={"type": "modal"}) == "invalid_trigger_id"
    assert await error_of(vendor, "auth_test", token="xoxb-wrong") == "invalid_auth"
    assert await error_of(vendor, "api_call", api_method="chat.unknown") == "unknown_method"
    vendor.is_revoked = True
    assert await error_of(vendor, "auth_test") == "account_inactive"


@pytest.mark.parametrize(
    "block",
    [
        {"type": "section", "text": {"type": "mrkdwn", "text": "x" * 3001}},
        {"type": "header", "text": {"type": "plain_text", "text": "x" * 151}},
        {"type": "actions", "elements": [{"type": "button", "text": {"type": "plain_text", "text": "x" * 76}}]},
        {"type": "actions", "elements": [{"type": "button", "value": "x" * 2001, "text": {"type": "plain_text", "text": "x"}}]},
        {"type": "rich_text", "elements": [{"type": "rich_text_section", "elements": [{"type": "text", "text": ""}]}]},
        {"type": "rich_text", "elements": [{"type": "text", "text": "x"}]},
        {"type": "unknown"},
    ],
)  # fmt: skip
async def test_blocks_beyond_the_limits_are_refused(vendor: SlackEmulator, block: dict[str, Any]) -> None:
    assert await error_of(vendor, "chat_postMessage", channel=BEA, text="x", blocks=[block]) == "invalid_blocks"


async def test_more_than_fifty_blocks_are_refused(vendor: SlackEmulator) -> None:
    blocks = [{"type": "divider"}] * 51
    assert await error_of(vendor, "chat_postMessage", channel=BEA, text="x", blocks=blocks) == "invalid_blocks"


async def test_a_flood_names_when_to_come_again(vendor: SlackEmulator) -> None:
    vendor.fail("flood")
    with pytest.raises(SlackApiError) as raised:
        await call(vendor, "chat_postMessage", channel=BEA, text="x")
    assert (raised.value.response.status_code, raised.value.response.headers["Retry-After"]) == (429, "7")
    await call(vendor, "chat_postMessage", channel=BEA, text="x")


async def test_bolt_verifies_and_reads_messages_and_mentions(
    vendor: SlackEmulator, bolt: tuple[App, list[BoltRequest]]
) -> None:
    app, _ = bolt
    events: list[dict[str, Any]] = []
    app.event("message")(lambda event: events.append(event))
    app.event("app_mention")(lambda event: events.append(event))
    vendor.write(BEA, "a < b")
    vendor.mention(BEA, "C0DEPLOYS", "status")
    await vendor.idle()
    assert [(event["type"], event["text"]) for event in events] == [
        ("message", "a &lt; b"),
        ("app_mention", "<@U0CORTEX> status"),
    ]
    assert [status for *_, status in vendor.deliveries] == [200, 200, 200]


async def test_bolt_opens_a_form_after_a_press_and_reads_it(
    vendor: SlackEmulator, bolt: tuple[App, list[BoltRequest]]
) -> None:
    app, _ = bolt
    words: list[tuple[str, str]] = []
    view = {
        "type": "modal", "callback_id": "why", "private_metadata": "x", "title": {"type": "plain_text", "text": "Why?"},
        "submit": {"type": "plain_text", "text": "Send"},
        "blocks": [{"type": "input", "block_id": "b", "label": {"type": "plain_text", "text": "Reason"},
                    "element": {"type": "plain_text_input", "action_id": "a"}}],
    }  # fmt: skip

    def pressed(ack: Callable[[], None], body: dict[str, Any], client: WebClient, respond: Callable[..., Any]) -> None:
        ack()
        respond("Seen")
        client.views_open(trigger_id=body["trigger_id"], view=view)

    def submitted(ack: Callable[[], None], body: dict[str, Any], view: dict[str, Any]) -> None:
        ack()
        words.append((body["user"]["id"], view["state"]["values"]["b"]["a"]["value"]))

    app.action("cortex_approve")(pressed)
    app.view("why")(submitted)
    await call(vendor, "chat_postMessage", channel=BEA, text="Deploy?", blocks=BLOCKS)
    vendor.press(BEA, vendor.chat(BEA)[-1], "Approve")
    await vendor.idle()
    assert [message.text for message in vendor.ephemeral] == ["Seen"]
    (form,) = vendor.views
    vendor.submit(form, {"a": "because"})
    await vendor.idle()
    assert words == [(BEA, "because")]
    assert vendor.views == []


async def test_bolt_reads_a_command(vendor: SlackEmulator, bolt: tuple[App, list[BoltRequest]]) -> None:
    app, _ = bolt

    def status(ack: Callable[[str], None], command: dict[str, Any]) -> None:
        ack(f"{command['user_id']} {command['text']}")

    app.command("/cortex")(status)
    vendor.command(BEA, "status now", channel="C0DEPLOYS")
    await vendor.idle()
    assert vendor.deliveries[-1][3] == 200


async def test_an_address_that_answers_no_challenge_is_not_saved(vendor: SlackEmulator) -> None:
    assert not await vendor.install(f"{vendor.url}/nothing")
    assert vendor.events_url == ""


async def test_an_event_is_tried_again_three_times(vendor: SlackEmulator) -> None:
    retries: list[tuple[str | None, str | None, bytes]] = []

    async def refuse(request: Request) -> Response:
        headers = request.headers
        retries.append((headers.get("x-slack-retry-num"), headers.get("x-slack-retry-reason"), await request.body()))
        assert SignatureVerifier(SIGNING_SECRET).is_valid_request(await request.body(), dict(headers))
        return Response(status_code=500)

    async with serving(Starlette(routes=[Route("/in", refuse, methods=["POST"])])) as url:
        vendor.events_url = f"{url}/in"
        vendor.write(BEA, "hello")
        await vendor.idle()
    assert [number for number, _, _ in retries] == [None, "1", "2", "3"]
    assert {reason for _, reason, _ in retries[1:]} == {"http_error"}
    assert len({body for _, _, body in retries}) == 1


async def test_a_form_opens_within_three_seconds_of_the_press_and_once() -> None:
    clock = itertools.count(1_000_000, 4)
    async with SlackEmulator(now=lambda: float(next(clock))).serve() as vendor:
        vendor.add_channel("C1", "one")
        vendor.command(BEA, "x", channel="C1")
        trigger = dict(vendor.traffic)["SlashCommand"]["trigger_id"]
        assert await error_of(vendor, "views_open", trigger_id=trigger, view={}) == "expired_trigger_id"
        assert await error_of(vendor, "views_open", trigger_id=trigger, view={}) == "invalid_trigger_id"


async def test_a_response_url_is_used_up(vendor: SlackEmulator) -> None:
    vendor.command(BEA, "x", channel="C0DEPLOYS")
    url = dict(vendor.traffic)["SlashCommand"]["response_url"]
    client = WebhookClient(url)
    codes = [(await asyncio.to_thread(client.send, text=str(n))).status_code for n in range(6)]
    assert codes == [200] * 5 + [404]
    assert [message.text for message in vendor.ephemeral] == list("01234")


async def test_the_sdk_takes_events_by_socket_mode(vendor: SlackEmulator) -> None:
    loop, requests = asyncio.get_running_loop(), asyncio.Queue[SocketModeRequest]()

    def take(client: BaseSocketModeClient, request: SocketModeRequest) -> None:
        client.send_socket_mode_response(SocketModeResponse(envelope_id=request.envelope_id))
        loop.call_soon_threadsafe(requests.put_nowait, request)

    client = SocketModeClient(APP_TOKEN, web_client=WebClient(BOT_TOKEN, base_url=vendor.api_url))
    client.socket_mode_request_listeners.append(take)
    async with asyncio.timeout(20):
        await asyncio.to_thread(client.connect)
        vendor.write(BEA, "hello")
        request = await requests.get()
        assert (request.type, request.payload["event"]["text"]) == ("events_api", "hello")
        vendor.command(BEA, "status")
        assert (await requests.get()).payload["text"] == "status"
        await asyncio.to_thread(client.close)
    assert len(vendor.acknowledged) == 2
