"""GitLab: what its channel writes, what it believes of webhooks, and what it makes of errors."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import orjson
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus
from cortex_plane.channels.gitlab import GitLabChannel
from cortex_plane.channels.vendor_http import VendorClient
from cortex_plane.kernel.addresses import Allowed
from cortex_plane.kernel.errors import InvalidInput, Unauthenticated
from cortex_plane.notify.model import channels as model
from cortex_plane.notify.model.channels import ButtonAction, ButtonPress, ChatMessage
from cortex_plane.notify.model.notifications import (
    Alert,
    ChatReply,
    Occasion,
    Outgoing,
    Target,
    TryAgain,
    Undeliverable,
)
from tests.channels.comment_behaviour import outside_of_code, rendered
from tests.channels.test_github_channel import HOSTILE, NOTIFICATION, SHORT, buttons
from tests.channels.test_webhook_channel import card
from tests.emulators.gitlab import TOKEN, GitLabEmulator, Hook
from tests.emulators.vendor_server import VendorFault

ADA = {"id": 11, "username": "ada", "name": "Ada"}
BOT = {"id": 12, "username": "project_42_bot_00ff", "name": "Robot"}
SECRET = "a-secret-token-of-a-webhook"
HOOK = "https://plane.example/v1/connections/1/inbound"


class Bench:
    """The channel and GitLab."""

    def __init__(self, emulator: GitLabEmulator, channel: GitLabChannel) -> None:
        self.emulator, self.channel = emulator, channel
        self.secrets = {"token": TOKEN, "webhook_secret": SECRET}

    def target(self, place: str = "acme/shop#5") -> Target:
        return Target(
            connection_id=UUID(int=1), connection="acme", config={"api_url": self.emulator.url}, secrets=self.secrets,
            address=place, member=place,
        )  # fmt: skip

    async def send(self, content: Any, place: str = "acme/shop#5", earlier: str | None = None) -> str:
        outgoing = Outgoing(
            id=NOTIFICATION, org_id=UUID(int=2), version=1, target=self.target(place), content=content, earlier=earlier,
            timestamp=datetime.now(UTC),
        )  # fmt: skip
        ref = (await self.channel.send(outgoing)).message_ref
        assert ref is not None
        return ref

    def receive(self, hook: Hook, token: str = SECRET) -> tuple[model.InboundItem, ...]:
        request = model.InboundRequest(
            method="POST", query={}, headers=hook.headers(token), body=hook.body, received_at=datetime.now(UTC)
        )
        return self.channel.receive(self.target(), request).items

    def read(self, text: str, place: str = "acme/shop#5", author: dict[str, Any] | None = None, **more: Any) -> Any:
        """What becomes of a note."""
        items = self.receive(self.emulator.say(place, text, author or ADA, **more))
        return self.channel.read(items[0].payload) if items else None

    @property
    def newest(self) -> str:
        return self.emulator.writes[-1].body


@pytest_asyncio.fixture
async def bench() -> AsyncIterator[Bench]:
    client = VendorClient(Allowed.parse("127.0.0.1"))
    async with GitLabEmulator().serve() as emulator:
        yield Bench(emulator, GitLabChannel(client))
        await client.close()


@pytest.mark.parametrize("place", ["acme/shop#5", "acme/shop!7"])
async def test_card_is_a_note_that_is_edited_to_its_end(bench: Bench, place: str) -> None:
    ref = await bench.send(card(buttons=buttons()), place)
    assert '"version": "1.0"' in bench.newest
    assert f"/cortex approve {SHORT} [reason]" in bench.newest
    assert await bench.send(card(occasion=Occasion.REMINDED), place, ref) == ref
    ended = card(status=ApprovalStatus.DENIED, resolved_by="Bea", resolved_at=datetime.now(UTC))
    assert await bench.send(ended, place, ref) == ref
    assert [(write.place, write.is_edit) for write in bench.emulator.writes] == [
        (place, False), (place, True), (place, False), (place, True),
    ]  # fmt: skip
    assert "Denied by Bea" in bench.newest
    assert "/cortex" not in bench.newest


@pytest.mark.parametrize("place", ["acme/web/open#3", "acme/inner#1"])
async def test_project_that_is_not_private_gets_a_link_instead_of_arguments(bench: Bench, place: str) -> None:
    await bench.send(card(buttons=buttons(), agent_says="the agent's words"), place)
    for hidden in ("1.0", "the agent's words", "approve"):
        assert hidden not in bench.newest.replace("approvals/", "").replace("Approval needed", "")
    assert f"/cortex deny {SHORT} reason" in bench.newest


async def test_deleted_note_is_written_again(bench: Bench) -> None:
    ref = await bench.send(card())
    bench.emulator.notes.clear()
    assert await bench.send(card(), earlier=ref) != ref


@pytest.mark.parametrize("hostile", HOSTILE)
async def test_text_of_others_runs_no_quick_action_and_mentions_nobody(bench: Bench, hostile: str) -> None:
    fields: dict[str, Any] = dict.fromkeys(
        ("agent", "tool", "target", "action", "arguments", "agent_says", "asked_for"), hostile
    )
    await bench.send(card(**fields, details={hostile: hostile}))
    reply = ChatReply(agent=hostile, text=f"{hostile}\n\n/close\n\n    /merge\n\n```\n/assign @ada\n```\n/approve")
    await bench.send(reply)
    for write in bench.emulator.writes:
        for active in ("@ada", "@everyone", "#12", "https://evil.example"):
            assert active not in outside_of_code(write.body)
        assert not re.search('<img|evil.example"', rendered(write.body))
        assert not [line for line in write.body.split("\n") if line.startswith("/")]


async def test_only_cards_and_replies_are_carried(bench: Bench) -> None:
    alert = Alert(
        alert="checkpoint_corrupt", org="Acme", agent="shipper", agent_id=UUID(int=1), job_id=UUID(int=2), session_id=UUID(int=3),
        corruption_type="hash", message="no", url="https://plane.example", happened_at=datetime.now(UTC),
    )  # fmt: skip
    with pytest.raises(Undeliverable):
        await bench.send(alert)


@pytest.mark.parametrize("place", ["11", "acme", "acme/shop", "acme/shop#0", "acme/../shop", "acme/shop&3", "/shop#1"])
async def test_place_that_is_no_issue_is_refused(bench: Bench, place: str) -> None:
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card(), place)
    assert refused.value.address


@pytest.mark.parametrize("place", ["acme/shop#99", "acme/nothing#1", "acme/../acme/shop#5"])
async def test_place_that_does_not_exist_is_undeliverable(bench: Bench, place: str) -> None:
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card(), place)
    assert (refused.value.address, refused.value.gone) == (True, False)


@pytest.mark.parametrize(
    ("fault", "least", "most"),
    [
        (VendorFault(status=429, headers={"retry-after": "17"}), 17, 17),
        (VendorFault(status=429), 60, 60),
        (VendorFault(status=503, headers={"retry-after": "5"}), 5, 5),
    ],
)
async def test_limits_and_outages_are_tried_again(bench: Bench, fault: VendorFault, least: float, most: float) -> None:
    bench.emulator.note_faults.add(fault)
    with pytest.raises(TryAgain) as refused:
        await bench.send(card())
    assert refused.value.after_seconds is not None
    assert least <= refused.value.after_seconds <= most


async def test_refusal_is_final_and_says_why(bench: Bench) -> None:
    bench.emulator.note_faults.add(VendorFault(status=403, body={"message": "403 Forbidden"}))
    with pytest.raises(Undeliverable, match="403 Forbidden"):
        await bench.send(card())


async def test_revoked_token_disables_the_connection(bench: Bench) -> None:
    bench.emulator.is_token_valid = False
    with pytest.raises(Undeliverable) as refused:
        await bench.send(card())
    assert refused.value.gone
    assert TOKEN not in refused.value.message


async def test_token_is_identified_with_what_is_left_to_do(bench: Bench) -> None:
    identity = await bench.channel.identify(bench.target(), HOOK)
    assert (identity.account, identity.external_id) == ("@project_42_bot_0123456789abcdef", "900")
    assert identity.config == {"mode": "webhook"}
    (task,) = identity.to_do
    assert HOOK in task
    assert "Deployment events" in task
    assert SECRET not in task


async def test_projects_that_the_plane_looks_into_must_be_readable(bench: Bench) -> None:
    target = bench.target()
    target = replace(target, config={**target.config, "projects": "acme/shop, acme/gone"})
    identity = await bench.channel.identify(target, None)
    assert identity.config == {"mode": "polling"}
    address, project = identity.to_do
    assert "an address that GitLab reaches" in address
    assert "acme/gone" in project
    assert "acme/shop" not in project


@pytest.mark.parametrize(
    ("secrets", "field"),
    [({"token": ""}, "token"), ({"webhook_secret": ""}, "webhook_secret"), ({"token": "glpat-x"}, "token")],
)
async def test_wrong_field_of_a_connection_is_named(bench: Bench, secrets: dict[str, str], field: str) -> None:
    bench.secrets |= secrets
    with pytest.raises(InvalidInput) as refused:
        await bench.channel.identify(bench.target(), HOOK)
    assert refused.value.details["field"] == field
    assert "glpat-x" not in str(refused.value)


async def test_token_that_may_not_write_is_refused(bench: Bench) -> None:
    bench.emulator.scopes = ["read_api"]
    with pytest.raises(InvalidInput, match="scope api"):
        await bench.channel.identify(bench.target(), HOOK)


@pytest.mark.parametrize("token", ["", "guess", SECRET + "x", SECRET[:-1], "é"])
async def test_other_token_is_refused(bench: Bench, token: str) -> None:
    with pytest.raises(Unauthenticated):
        bench.receive(bench.emulator.say("acme/shop#5", f"/cortex deny {SHORT} no", ADA), token)


async def test_connection_without_a_secret_believes_nothing(bench: Bench) -> None:
    hook = bench.emulator.say("acme/shop#5", f"/cortex deny {SHORT} no", ADA)
    bench.secrets = {"token": TOKEN}
    with pytest.raises(Unauthenticated):
        bench.receive(hook, "")


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"[]",
        b'{"object_kind": "deployment", "status": "blocked"}',
        b'{"object_kind": "deployment", "status": "blocked", "project": {"path_with_namespace": ".."}, "deployment_id": 1, "environment": "x"}',
        b'{"object_kind": "note"}',
        b'{"object_kind": "note", "object_attributes": 1}',
    ],
)
async def test_malformed_webhook_is_refused(bench: Bench, body: bytes) -> None:
    with pytest.raises(InvalidInput):
        bench.receive(Hook(body=body))


@pytest.mark.parametrize("place", ["acme/shop#5", "acme/shop!7"])
async def test_command_is_a_press_of_whoever_wrote_it(bench: Bench, place: str) -> None:
    press = bench.read(f"/cortex deny {SHORT}-2 too early", place)
    assert isinstance(press, ButtonPress)
    assert press.data == model.TypedButton(action=ButtonAction.DENY, short_id=f"{SHORT}-2").data
    assert (press.note, press.sender.id, press.sender.name, press.chat.id) == ("too early", "11", "ada", place)


async def test_notes_that_are_no_command_of_a_person_are_not_stored(bench: Bench) -> None:
    command = f"/cortex approve {SHORT}"
    for text in ("Looks good", f"/approve {SHORT}", "/cortex approve please", f"> {command}"):
        assert bench.read(text) is None
    assert bench.read(command, author=BOT) is None
    assert bench.read(command, action="update") is None
    assert bench.read(command, user={"id": 13, "username": "mallory", "name": "Mallory"}) is None
    hook = bench.emulator.say("acme/shop#5", command, ADA)
    system = orjson.loads(hook.body)
    system["object_attributes"]["system"] = True
    assert bench.receive(replace(hook, body=orjson.dumps(system))) == ()
    assert bench.read(command) is not None


async def test_same_note_is_one_event(bench: Bench) -> None:
    hook = bench.emulator.say("acme/shop#5", f"/cortex approve {SHORT}", ADA)
    (first,) = bench.receive(hook)
    (again,) = bench.receive(replace(hook, guid="another"))
    assert first.event_id == again.event_id


async def test_words_for_the_agent_count_in_private_projects(bench: Bench) -> None:
    message = bench.read("/cortex status")
    assert isinstance(message, ChatMessage)
    assert message.text == "/status"
    assert bench.read("/cortex what is open?", "acme/web/open#3") is None


async def test_answer_is_an_emoji_or_says_what_is_wrong(bench: Bench) -> None:
    event = bench.read(f"/cortex approve {SHORT}")
    for _ in range(2):
        await bench.channel.answer(bench.target(), event, model.InboundAnswer(text="Approved."))
    assert [name for _, name in bench.emulator.emoji] == ["thumbsup"]
    await bench.channel.answer(bench.target(), event, model.InboundAnswer(text="You may not.", is_problem=True))
    assert "You may not" in bench.newest
    event = bench.read(f"/cortex deny {SHORT} no", "acme/web/open#3")
    await bench.channel.answer(
        bench.target("acme/web/open#3"), event, model.InboundAnswer(text="Who?", is_problem=True)
    )
    assert len(bench.emulator.writes) == 1, "strangers cannot make it write in public"
