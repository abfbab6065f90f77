"""GitHub: what its channel writes, what it believes of webhooks, and what it makes of errors."""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import orjson
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.github import GitHubChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.kernel.ids import new_id
from cortex_plane.notify.model import channels as model
from cortex_plane.notify.model.channels import Button, ButtonAction, ButtonPress, ChatMessage, ConnectionRevoked
from cortex_plane.notify.model.notifications import (
    Card,
    ChatReply,
    Invitation,
    Occasion,
    Outgoing,
    Target,
    TryAgain,
    Undeliverable,
)
from tests.channels.comment_behaviour import outside_of_code, rendered
from tests.channels.test_webhook_channel import card
from tests.emulators import github_objects as objects
from tests.emulators.github import APP_ID, INSTALLATION_ID, TOKEN, GitHubEmulator, Webhook, app_key_pem
from tests.emulators.vendor_server import VendorFault
from tests.fixtures.vendor_messages import send_whole

ADA = objects.user("ada", 583231)
MALLORY = objects.user("mallory", 666)
BOT = objects.user("other[bot]", 49699333, "Bot")
SECRET = "It's a Secret to Everybody"
HOOK = "https://plane.example/v1/connections/1/inbound"


class Bench:
    """The channel and GitHub."""

    def __init__(self, emulator: GitHubEmulator, channel: GitHubChannel) -> None:
        self.emulator, self.channel = emulator, channel
        self.config: dict[str, Any] = {
            "api_url": emulator.url, "app_id": str(APP_ID), "installation_id": str(INSTALLATION_ID),
        }  # fmt: skip
        self.secrets = {"private_key": app_key_pem(), "webhook_secret": SECRET}
        emulator.hook = {"url": HOOK, "secret": SECRET}

    def target(self, place: str = "acme/shop#12") -> Target:
        return Target(
            connection_id=UUID(int=1),
            connection="acme",
            config=self.config,
            secrets=self.secrets,
            address=place,
            member=place,
        )

    def outgoing(self, content: Any, place: str = "acme/shop#12", earlier: str | None = None) -> Outgoing:
        return Outgoing(
            id=NOTIFICATION, org_id=UUID(int=2), version=1, target=self.target(place), content=content, earlier=earlier,
            timestamp=datetime.now(UTC),
        )  # fmt: skip

    async def send(self, content: Any, place: str = "acme/shop#12", earlier: str | None = None) -> str:
        receipt = await send_whole(self.channel, self.outgoing(content, place, earlier))
        assert receipt.message_ref is not None
        return receipt.message_ref

    def receive(self, webhook: Webhook, **headers: str) -> tuple[model.InboundItem, ...]:
        request = model.InboundRequest(
            method="POST", query={}, headers={**self.emulator.headers_of(webhook), **headers}, body=webhook.body,
            received_at=datetime.now(UTC),
        )  # fmt: skip
        return self.channel.receive(self.target(), request).items

    async def read(self, text: str, place: str = "acme/shop#12", author: dict[str, Any] = ADA, **more: Any) -> Any:
        """What becomes of a comment."""
        items = self.receive(await self.emulator.say(place, text, author, **more))
        return self.channel.read(items[0].payload) if items else None

    @property
    def newest(self) -> str:
        return self.emulator.writes[-1].body


NOTIFICATION = UUID("01890000-0000-7000-8000-0123456789ab")
SHORT = "encwpcnl"
"""Of this notification."""


def buttons(version: int = 1) -> tuple[Button, ...]:
    actions = (ButtonAction.APPROVE, ButtonAction.DENY, ButtonAction.RESPOND)
    return tuple(Button(action=action, notification_id=NOTIFICATION, version=version) for action in actions)


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitHubEmulator().serve() as emulator:
        yield Bench(emulator, GitHubChannel(client, redelivery_seconds=0.01))
        await client.close()


# What it writes ------------------------------------------------------------------------------------------------------


async def test_card_shows_its_arguments_and_the_commands_that_decide(bench: Bench) -> None:
    assert Button(action=ButtonAction.DENY, notification_id=NOTIFICATION, version=1).short_id == SHORT
    await bench.send(card(buttons=buttons()))
    assert '"version": "1.0"' in bench.newest
    for command in (f"/approve {SHORT} [reason]", f"/deny {SHORT} reason", f"/respond {SHORT} your answer"):
        assert command in bench.newest
    await bench.send(card(version=3, buttons=buttons(3)))
    assert f"/deny {SHORT}-3 reason" in bench.newest


async def test_public_repository_gets_a_link_instead_of_arguments(bench: Bench) -> None:
    secretive = card(
        buttons=buttons(), agent_says="the agent's words", asked_for="who asked", tool="refund", target="ACC-1"
    )
    sent = await bench.channel.send(bench.outgoing(secretive, "acme/open#3"))
    for hidden in ("1.0", "the agent's words", "who asked", "refund", "ACC-1", "/approve", "/respond"):
        assert hidden not in bench.newest
    assert f"/deny {SHORT} reason" in bench.newest
    assert secretive.url in bench.newest
    assert sent.shown == {"arguments": False}


async def test_internal_repository_counts_as_public(bench: Bench) -> None:
    """Everybody in the enterprise reads it."""
    bench.emulator.internal.add("acme/shop")
    await bench.send(card(buttons=buttons()))
    assert '"version"' not in bench.newest
    assert "/approve" not in bench.newest
    assert await bench.read("/cortex what is open?") is None


async def test_repository_that_became_public_loses_its_arguments_with_the_next_update(bench: Bench) -> None:
    ref = await bench.send(card())
    bench.emulator.repositories["acme/shop"] = False
    await bench.send(card(occasion=Occasion.CHANGED), earlier=ref)
    assert bench.emulator.writes[-1].is_edit
    assert '"version"' not in bench.newest


async def test_end_edits_the_comment_and_leaves_no_command(bench: Bench) -> None:
    ref = await bench.send(card(buttons=buttons()))
    ended = card(
        status=ApprovalStatus.DENIED, resolved_by="Bea", resolved_at=datetime.now(UTC), resolution_reason="too early"
    )
    assert await bench.send(ended, earlier=ref) == ref
    assert [(write.is_edit, str(write.id)) for write in bench.emulator.writes] == [(False, ref), (True, ref)]
    assert "Denied by Bea" in bench.newest
    assert "/deny" not in bench.newest


async def test_reminder_edits_the_card_and_says_so_under_it(bench: Bench) -> None:
    ref = await bench.send(card())
    assert await bench.send(card(occasion=Occasion.REMINDED), earlier=ref) == ref
    assert [write.is_edit for write in bench.emulator.writes] == [False, True, False]
    assert "Reminder, approval needed" in bench.newest


async def test_deleted_comment_is_written_again(bench: Bench) -> None:
    ref = await bench.send(card())
    bench.emulator.comments.clear()
    again = await bench.send(card(), earlier=ref)
    assert again != ref
    assert not bench.emulator.writes[-1].is_edit


HOSTILE = [
    "@everyone @ada #12 acme/shop#3 GH-7",
    "``` \n````\n/close\n@ada",
    "`code` ``more`` @ada",
    "</code></pre> @ada <img src=x>",
    "[Approve](https://evil.example) https://evil.example",
    "text\n/approve\n/assign @ada",
]


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_text_of_others_mentions_nobody_and_links_nowhere(bench: Bench, hostile: str) -> None:
    fields: dict[str, Any] = dict.fromkeys(
        ("agent", "tool", "target", "action", "arguments", "agent_says", "asked_for", "rule", "rule_reason", "org"),
        hostile,
    )
    await bench.send(card(**fields, deciders=(hostile,), details={hostile: hostile}, resolved_by=hostile))
    outside = outside_of_code(bench.newest)
    for active in ("@ada", "@everyone", "#12", "shop#3", "evil.example"):
        assert active not in outside
    assert "<img" not in rendered(bench.newest)
    assert not [line for line in bench.newest.split("\n") if line.startswith("/")]


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_reply_of_an_agent_mentions_nobody_and_links_nowhere(bench: Bench, hostile: str) -> None:
    await bench.send(ChatReply(agent="helper", text=f"Hello\n\n{hostile}\n\n- {hostile}\n\n> {hostile}"))
    outside = outside_of_code(bench.newest)
    for active in ("@ada", "@everyone", "#12", "shop#3", "https://evil.example"):
        assert active not in outside
    assert not re.search("<(img|a) ", rendered(bench.newest))
    assert not [line for line in bench.newest.split("\n") if line.lstrip().startswith("/") and "  /" not in line]


@pytest.mark.parametrize("unit", ["`@ada /close` ", "````\n```\n/close\n@ada\n````\n\n", "\\@ada GH-7 "])
async def test_long_reply_that_is_split_keeps_its_code_closed(bench: Bench, unit: str) -> None:
    for shift in range(3):
        bench.emulator.writes.clear()
        await bench.send(ChatReply(agent="helper", text="x" * shift + "\n\n" + unit * (150_000 // len(unit))))
        assert len(bench.emulator.writes) > 2
        for write in bench.emulator.writes:
            assert len(write.body) < 65_536
            outside = outside_of_code(write.body)
            assert "@ada" not in outside
            assert "GH-7" not in outside
            assert not [line for line in write.body.split("\n") if line.startswith("/")]


async def test_retry_of_a_long_reply_writes_no_part_twice(bench: Bench) -> None:
    message = bench.outgoing(ChatReply(agent="helper", text=" ".join(map(str, range(12_000)))))
    receipt = await bench.channel.send(message)
    bench.emulator.comment_faults.add(VendorFault(status=429, headers={"retry-after": "1"}))
    message = replace(message, earlier=receipt.message_ref, shown=receipt.shown)
    with pytest.raises(TryAgain):
        await bench.channel.send(message)
    await send_whole(bench.channel, message)
    bodies = [write.body for write in bench.emulator.writes]
    assert len(bodies) == len(set(bodies)) > 1


async def test_long_card_fits_and_offers_no_approval(bench: Bench) -> None:
    long = card(arguments="x" * 200_000, buttons=buttons())
    assert not bench.channel.shows_whole(long)
    assert bench.channel.shows_whole(card())
    await bench.send(long)
    assert len(bench.newest) < 65_536
    assert "/approve" not in bench.newest


@pytest.mark.parametrize(
    "place", ["583231", "acme/shop", "acme/shop#0", "acme/../x#1", "a/b/c#1", "acme/shop#12/comments"]
)
async def test_place_that_is_no_issue_is_refused_without_a_request(bench: Bench, place: str) -> None:
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card(), place)
    assert refused.value.address
    assert bench.emulator.requests == []


async def test_only_cards_and_replies_are_carried(bench: Bench) -> None:
    invitation = Invitation(org="Acme", invited_by="Ann", url="https://plane.example", expires_at=datetime.now(UTC))
    with pytest.raises(Undeliverable):
        await bench.send(invitation)


# What GitHub refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["acme/shop#99", "acme/other#1"])
async def test_place_that_does_not_exist_is_undeliverable(bench: Bench, place: str) -> None:
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card(), place)
    assert (refused.value.address, refused.value.gone) == (True, False)
    assert place.partition("#")[0] in refused.value.message


@pytest.mark.parametrize(
    ("status", "headers", "message", "seconds"),
    [
        (429, {"retry-after": "17"}, "", (17, 17)),
        (403, {"retry-after": "40"}, "You have exceeded a secondary rate limit", (40, 40)),
        (403, {"x-ratelimit-remaining": "0", "x-ratelimit-reset": "+90"}, "API rate limit exceeded", (85, 95)),
        (403, {}, "You have exceeded a secondary rate limit.", (60, 60)),
        (503, {}, "", (None, None)),
    ],
)
async def test_limits_and_outages_are_tried_again_when_github_says(
    bench: Bench, status: int, headers: dict[str, str], message: str, seconds: tuple[float | None, float | None]
) -> None:
    if "x-ratelimit-reset" in headers:
        headers = headers | {"x-ratelimit-reset": str(int(datetime.now(UTC).timestamp()) + 90)}
    bench.emulator.comment_faults.add(VendorFault(status=status, body={"message": message}, headers=headers))
    with pytest.raises(TryAgain) as refused:
        await bench.send(card())
    least, most = seconds
    if least is None or most is None:
        assert refused.value.after_seconds is None
    else:
        assert refused.value.after_seconds is not None
        assert least <= refused.value.after_seconds <= most


async def test_refusal_that_is_no_limit_is_final(bench: Bench) -> None:
    body = {"message": "Unable to create comment because issue is locked."}
    bench.emulator.comment_faults.add(VendorFault(status=403, body=body))
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card())
    assert "issue is locked" in refused.value.message


async def test_repository_without_issues_is_a_place_that_fails(bench: Bench) -> None:
    body = {"message": "Issues has been disabled in this repository."}
    bench.emulator.comment_faults.add(VendorFault(status=410, body=body))
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card())
    assert (refused.value.address, refused.value.gone) == (True, False)


async def test_expired_token_of_an_installation_is_made_anew(bench: Bench) -> None:
    await bench.send(card())
    await bench.send(card())
    assert [path for _, path in bench.emulator.requests].count(
        f"/app/installations/{INSTALLATION_ID}/access_tokens"
    ) == 1
    bench.emulator.revoke_tokens()
    await bench.send(card())
    assert len(bench.emulator.writes) == 3


async def test_uninstalled_app_disables_the_connection(bench: Bench) -> None:
    await bench.send(card())
    bench.emulator.is_installed = False
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card())
    assert refused.value.gone


async def test_revoked_token_disables_the_connection(bench: Bench) -> None:
    bench.secrets = {"token": "github_pat_revoked", "webhook_secret": SECRET}
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card())
    assert refused.value.gone
    assert "github_pat" not in refused.value.message


# Who a connection is -------------------------------------------------------------------------------------------------


async def test_app_is_identified_and_its_webhook_set_up(bench: Bench) -> None:
    bench.emulator.hook = {}
    del bench.secrets["webhook_secret"]
    identity = await bench.channel.identify(bench.target(), HOOK)
    assert (identity.account, identity.external_id, identity.to_do) == ("cortex[bot]", str(APP_ID), ())
    assert bench.emulator.hook["url"] == HOOK
    assert bench.emulator.hook["content_type"] == "json"
    assert bench.emulator.hook["secret"] == identity.secrets["webhook_secret"]
    bench.secrets |= identity.secrets
    assert (await bench.channel.identify(bench.target(), HOOK)).secrets == identity.secrets, "the same again"


async def test_missing_permissions_and_addresses_are_things_to_do(bench: Bench) -> None:
    bench.emulator.permissions, bench.emulator.events = {"metadata": "read"}, []
    address, permission, event = (await bench.channel.identify(bench.target(), None)).to_do
    assert "address" in address
    assert "Issues" in permission
    assert "Issue comment" in event


async def test_token_is_identified(bench: Bench) -> None:
    bench.secrets = {"token": TOKEN, "webhook_secret": SECRET}
    identity = await bench.channel.identify(bench.target(), HOOK)
    assert (identity.account, identity.external_id) == ("robot-of-acme", "77")
    assert any(HOOK in task for task in identity.to_do)


@pytest.mark.parametrize(
    ("config", "secrets", "field"),
    [
        ({"app_id": ""}, {}, "app_id"),
        ({"installation_id": ""}, {}, "installation_id"),
        ({}, {"private_key": "-----BEGIN NOTHING-----"}, "private_key"),
        ({"app_id": "1"}, {}, "private_key"),
        ({"installation_id": "1"}, {}, "installation_id"),
        ({}, {"private_key": "", "token": "ghp_wrong"}, "token"),
        ({}, {"private_key": "", "token": TOKEN, "webhook_secret": ""}, "webhook_secret"),
    ],
)
async def test_wrong_field_of_a_connection_is_named(
    bench: Bench, config: dict[str, str], secrets: dict[str, str], field: str
) -> None:
    bench.config |= config
    bench.secrets |= secrets
    with pytest.raises(InvalidInput) as refused:
        await bench.channel.identify(bench.target(), HOOK)
    assert refused.value.details["field"] == field
    assert "PRIVATE KEY" not in str(refused.value)
    assert "ghp_wrong" not in str(refused.value)


# What it believes ----------------------------------------------------------------------------------------------------


def test_signature_is_the_one_of_githubs_own_example(bench: Bench) -> None:
    signature = "sha256=757107ea0eb2509fc211221cce984b8a37570b6d7586c22c46f4379c8b043e17"
    webhook = Webhook(event="star", action=None, body=b"Hello, World!")
    with pytest.raises(InvalidInput):  # believed, and no JSON
        bench.receive(webhook, **{"x-hub-signature-256": signature})
    for forged in (signature.replace("7571", "7572"), "", "sha256=", signature.removeprefix("sha256="), "sha256=é"):
        with pytest.raises(Unauthenticated):
            bench.receive(webhook, **{"x-hub-signature-256": forged})


async def test_webhook_without_a_secret_is_refused(bench: Bench) -> None:
    webhook = await bench.emulator.say("acme/shop#12", f"/deny {SHORT} no", ADA)
    headers = bench.emulator.headers_of(webhook, "")
    bench.secrets = {"private_key": app_key_pem()}
    with pytest.raises(Unauthenticated):
        bench.receive(webhook, **headers)


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"action": "created"}', b'{"action": "created", "comment": 1}'])
def test_malformed_webhook_is_refused(bench: Bench, body: bytes) -> None:
    with pytest.raises(InvalidInput):
        bench.receive(Webhook(event="issue_comment", action="created", body=body))


@pytest.mark.parametrize(
    ("text", "action", "short_id", "words"),
    [
        (f"/approve {SHORT}", ButtonAction.APPROVE, SHORT, None),
        (f"  /approve {SHORT.upper()}-2 looks good \n> quoted", ButtonAction.APPROVE, f"{SHORT}-2", "looks good"),
        (f"/deny {SHORT}  too early", ButtonAction.DENY, SHORT, "too early"),
        (f"/deny {SHORT}", ButtonAction.DENY, SHORT, None),
        (f"/respond {SHORT} two\nlines", ButtonAction.RESPOND, SHORT, "two\nlines"),
        (f"/cortex approve {SHORT}", ButtonAction.APPROVE, SHORT, None),
    ],
)
async def test_command_is_a_press_of_whoever_wrote_it(
    bench: Bench, text: str, action: ButtonAction, short_id: str, words: str | None
) -> None:
    press = await bench.read(text)
    assert isinstance(press, ButtonPress)
    assert press.data == model.TypedButton(action=action, short_id=short_id).data
    assert (press.note, press.sender.id, press.sender.name, press.chat.id) == (words, "583231", "ada", "acme/shop#12")
    assert not press.chat.is_private


@pytest.mark.parametrize(
    "text",
    [
        "Looks good", f"I would\n/approve {SHORT}", f"> /approve {SHORT}", "/approve", "/approve please", f"approve {SHORT}",
        f"/approve {SHORT}x", f"/approved {SHORT}", f"@cortex /approve {SHORT}",
    ],
)  # fmt: skip
async def test_other_comments_are_not_stored(bench: Bench, text: str) -> None:
    assert await bench.read(text) is None


async def test_command_counts_only_when_its_own_author_makes_it(bench: Bench) -> None:
    command = f"/approve {SHORT}"
    assert await bench.read(command, author=BOT) is None
    assert await bench.read(command, sender=MALLORY) is None
    assert await bench.read(command, action="edited") is None
    assert await bench.read(command) is not None


async def test_same_comment_is_one_event_however_often_it_comes(bench: Bench) -> None:
    webhook = await bench.emulator.say("acme/shop#12", f"/approve {SHORT}", ADA)
    (first,) = bench.receive(webhook)
    (again,) = bench.receive(webhook, **{"x-github-delivery": "another"})
    assert first.event_id == again.event_id


async def test_old_comment_is_not_believed(bench: Bench) -> None:
    webhook = await bench.emulator.say("acme/shop#12", f"/approve {SHORT}", ADA)
    payload = orjson.loads(webhook.body)
    payload["comment"]["created_at"] = (datetime.now(UTC) - timedelta(days=8)).isoformat()
    assert bench.receive(replace(webhook, body=orjson.dumps(payload))) == ()


async def test_words_for_the_agent_count_in_private_repositories(bench: Bench) -> None:
    message = await bench.read("/cortex status")
    assert isinstance(message, ChatMessage)
    assert message.text == "/status"
    message = await bench.read("/cortex what is\nopen?")
    assert message.text == "what is\nopen?"
    assert await bench.read("/cortex what is open?", "acme/open#3") is None


@pytest.mark.parametrize("action", ["deleted", "suspend"])
async def test_uninstalled_app_is_a_connection_that_was_taken_away(bench: Bench, action: str) -> None:
    (item,) = bench.receive(await bench.emulator.uninstall(action))
    revoked = bench.channel.read(item.payload)
    assert isinstance(revoked, ConnectionRevoked)


@pytest.mark.parametrize("event", ["comment", "uninstall"])
async def test_other_installations_of_an_app_are_not_ours(bench: Bench, event: str) -> None:
    """Anybody may install a public App, and then its webhooks come from their repositories, too."""
    bench.config["installation_id"] = "9002"
    if event == "comment":
        webhook = await bench.emulator.say("acme/shop#12", "/cortex hello", ADA)
    else:
        webhook = await bench.emulator.uninstall()
    assert bench.receive(webhook) == ()


async def test_ping_is_answered_and_nothing_else(bench: Bench) -> None:
    assert bench.receive(await bench.emulator.ping()) == ()


# Answers -------------------------------------------------------------------------------------------------------------


async def answered(bench: Bench, text: str, answer: model.InboundAnswer, place: str = "acme/shop#12") -> None:
    event = await bench.read(text, place)
    await bench.channel.answer(bench.target(place), event, answer)


async def test_answer_to_a_command_is_a_reaction_or_says_what_is_wrong(bench: Bench) -> None:
    await answered(bench, f"/approve {SHORT}", model.InboundAnswer(text="Approved."))
    assert [content for _, content in bench.emulator.reactions] == ["+1"]
    await answered(bench, f"/approve {SHORT}", model.InboundAnswer(text="You may not, @ada.", is_problem=True))
    assert "You may not" in bench.newest
    assert "@ada" not in bench.newest
    button = Button(action=ButtonAction.DENY, notification_id=NOTIFICATION, version=2)
    await answered(bench, f"/deny {SHORT}-2", model.InboundAnswer(text="Why?", ask_for=button.data))
    assert f"/deny {SHORT}-2 reason" in bench.newest


async def test_strangers_cannot_make_it_write_in_public(bench: Bench) -> None:
    await answered(bench, f"/deny {SHORT} no", model.InboundAnswer(text="Who are you?", is_problem=True), "acme/open#3")
    assert bench.emulator.writes == []
    assert [content for _, content in bench.emulator.reactions] == ["confused"]


async def test_answer_to_a_deleted_comment_is_no_error(bench: Bench) -> None:
    event = await bench.read(f"/approve {SHORT}")
    bench.emulator.comments.clear()
    assert await bench.channel.answer(bench.target(), event, model.InboundAnswer(text="Approved.")) is None


# After our own downtime ----------------------------------------------------------------------------------------------


async def test_webhooks_that_failed_are_asked_for_again_once(bench: Bench) -> None:
    arrived: list[str] = []
    status = 0

    async def post(url: str, headers: dict[str, str], body: bytes) -> int:
        if status:
            arrived.append(orjson.loads(body)["comment"]["body"])
        return status

    bench.emulator.post = post
    await bench.emulator.say("acme/shop#12", "/approve lost", ADA)
    status = 200
    await bench.emulator.say("acme/shop#12", "/approve arrived", ADA)
    status = 502
    for number in range(120):
        await bench.emulator.say("acme/shop#12", f"/approve {number}", ADA)
    status = 200
    arrived.clear()
    cursors: list[str | None] = []

    async def deliver(items: Sequence[model.InboundItem], cursor: str | None) -> None:
        assert not items
        cursors.append(cursor)
        if len(cursors) == 3:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.channel.listen(bench.target(), None, deliver)
    assert arrived == ["/approve lost", *(f"/approve {number}" for number in range(120))]
    assert cursors[-1] == str(bench.emulator.attempts[-1].id)


async def test_webhooks_are_asked_for_until_they_arrive(bench: Bench) -> None:
    """An outage may last longer than one round, and what the plane refuses is not asked for again and again."""
    statuses = iter([502, 400, 502, 400, 0, 204])

    async def post(url: str, headers: dict[str, str], body: bytes) -> int:
        return next(statuses)

    bench.emulator.post = post
    for text in ("/approve lost", "/approve refused"):
        await bench.emulator.say("acme/shop#12", text, ADA)
    rounds = itertools.count(1)

    async def deliver(items: Sequence[model.InboundItem], cursor: str | None) -> None:
        if next(rounds) == 6:
            raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.channel.listen(bench.target(), None, deliver)
    assert [attempt.status for attempt in bench.emulator.attempts] == [502, 400, 502, 400, 0, 204]


async def test_deliveries_before_the_cursor_are_left_alone(bench: Bench) -> None:
    await bench.emulator.say("acme/shop#12", "/approve lost", ADA)
    seen = str(bench.emulator.attempts[-1].id)

    async def deliver(items: Sequence[model.InboundItem], cursor: str | None) -> None:
        assert cursor == seen
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await bench.channel.listen(bench.target(), seen, deliver)
    assert len(bench.emulator.attempts) == 1


def test_new_ids_have_short_ids_of_their_own() -> None:
    ids = {Button(action=ButtonAction.DENY, notification_id=new_id(), version=1).short_id for _ in range(1000)}
    assert len(ids) == 1000


def test_typed_button_is_read_back() -> None:
    typed = model.TypedButton(action=ButtonAction.DENY, short_id="abcdefg2-12")
    assert model.read_typed_button(typed.data) == typed
    for other in ("s1:x:abcdefg2", "s1:a:abcdefg1", "s1:a:abcdefg2-0", "s1:a:abcdefg2 ", "c1:a:abcdefg2"):
        assert model.read_typed_button(other) is None
    assert isinstance(card(), Card)
