"""The phone of `cortex up`: who may use it, what it shows, and that its connections are served nowhere else."""

from __future__ import annotations

import html
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import httpx
import pytest
import pytest_asyncio

from cortex_plane.approvals.model.approvals import ApprovalStatus, Channel
from cortex_plane.approvals.verbs import approvals
from cortex_plane.dashboard.phone import PhoneBlockKind, PhoneStyle
from cortex_plane.kernel.errors import Conflict, InvalidInput
from cortex_plane.main import demo
from cortex_plane.main.phone_chats import entity_blocks, rich_blocks
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import Connection, ConnectionChange, ConnectionDraft, ConnectionState
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections, trial_connections
from cortex_plane.tenancy.verbs.served_channels import EMULATED
from tests.conftest import Urls
from tests.fixtures.hostile import HOSTILE
from tests.fixtures.people import Person, World, apply_policies
from tests.fixtures.phones import POLICY, PhonePlane, button, choice, plane_with_phone, says, texts
from tests.fixtures.visitors import Visitor
from tests.fixtures.workers import working
from tests.main.test_api_processes import served

TRY = "/channels/try"


@pytest_asyncio.fixture
async def plane(strict: World) -> AsyncIterator[PhonePlane]:
    await apply_policies(strict.db, strict.admin.actor, POLICY)
    async with plane_with_phone(strict) as plane:
        yield plane


async def log_in(plane: PhonePlane, world: World, person: Person | None = None) -> Visitor:
    return await Visitor.log_in(plane.http, world, person)


async def start(plane: PhonePlane, world: World, person: Person | None = None) -> Visitor:
    visitor = await log_in(plane, world, person)
    answer = await visitor.submit(await visitor.get(TRY), f"{TRY}/link")
    assert (answer.status_code, answer.headers["location"]) == (303, TRY)
    return visitor


async def trials(world: World) -> dict[str, Connection]:
    page = await connections.list_connections(world.db, world.admin.actor, None, 50)
    return {item.channel_type: item for item in page.items if EMULATED in item.config}


async def senders(world: World, person: Person) -> dict[UUID, str]:
    page = await connections.list_own_mappings(world.db, person.actor, None, 50)
    return {item.connection_id: item.channel_user_id for item in page.items if item.verified_at is not None}


async def write(visitor: Visitor, app: str, text: str, **more: str) -> httpx.Response:
    page = await visitor.get(f"{TRY}/{app}")
    return await visitor.submit(page, f"{TRY}/{app}/write", **{"text": text, **more})


# A conversation --------------------------------------------------------------------------------------------------------


async def test_chat_on_telegram_and_approve_on_slack(plane: PhonePlane, strict: World) -> None:
    visitor, actor = await start(plane, strict), strict.admin.actor
    async with working(strict.db, demo.chat_app):
        await write(visitor, "telegram", "hello")
        await plane.until(actor, "telegram", says("Hello, I am the demo agent."))
        await write(visitor, "telegram", "ship 2.4")
        slack = await plane.until(actor, "slack", says("Approval needed"))
        await plane.until(actor, "telegram", says("Approval needed"))
        page = await visitor.get(f"{TRY}/slack")
        assert '"request": "ship 2.4"' in html.unescape(page.text)
        message, data = button(slack, "Approve")
        pressed = await visitor.submit(page, f"{TRY}/slack/press", message=message, data=data)
        assert pressed.status_code == 303
        telegram = await plane.until(actor, "telegram", says("A person approved it first."))
        await plane.until(actor, "telegram", lambda chat: not any(message.has_choice for message in chat.messages))
        await plane.until(actor, "slack", lambda chat: not any(message.has_choice for message in chat.messages))
    assert any(text.startswith("Approved by Ada") for text in texts(plane.phone.chat(actor, "telegram")))
    assert telegram.messages[-1].is_mine is False
    (approval,) = (await approvals.list_approvals(strict.db, actor, None, 10)).items
    assert (approval.status, approval.resolved_via) == (ApprovalStatus.APPROVED, Channel.SLACK)
    assert [cause.name for cause in approval.caused if cause.member_id is None] == [], "a connection is nobody"


async def test_telegram_asks_for_the_reason_by_a_reply(plane: PhonePlane, strict: World) -> None:
    visitor, actor = await start(plane, strict), strict.admin.actor
    async with working(strict.db, demo.chat_app):
        await write(visitor, "telegram", "ship 2.4")
        chat = await plane.until(actor, "telegram", says("Approval needed"))
        message, data = button(chat, "Deny")
        page = await visitor.get(f"{TRY}/telegram")
        await visitor.submit(page, f"{TRY}/telegram/press", message=message, data=data)
        chat = await plane.until(actor, "telegram", lambda chat: chat.question is not None)
        assert chat.question is not None
        page = await visitor.get(f"{TRY}/telegram")
        assert "Reply to:" in page.text
        await visitor.submit(page, f"{TRY}/telegram/write", text="not on a Friday")
        await plane.until(actor, "telegram", says("Denied by Ada"))
    (approval,) = (await approvals.list_approvals(strict.db, actor, None, 10)).items
    assert (approval.status, approval.resolution_reason) == (ApprovalStatus.DENIED, "not on a Friday")


async def test_slack_asks_for_the_reason_by_a_form(plane: PhonePlane, strict: World) -> None:
    visitor, actor = await start(plane, strict), strict.admin.actor
    async with working(strict.db, demo.chat_app):
        await write(visitor, "slack", "ship 2.4")
        chat = await plane.until(actor, "slack", says("Approval needed"))
        for act in ("cancel", "send"):
            message, data = button(chat, "Deny")
            page = await visitor.get(f"{TRY}/slack")
            await visitor.submit(page, f"{TRY}/slack/press", message=message, data=data)
            await plane.until(actor, "slack", lambda chat: chat.question is not None)
            page = await visitor.get(f"{TRY}/slack")
            assert 'role="dialog"' in page.text
            await visitor.submit(page, f"{TRY}/slack/form", act=act, text="too early")
            chat = plane.phone.chat(actor, "slack")
            assert chat.question is None
            if act == "cancel":
                assert choice(chat), "nothing was decided"
        await plane.until(actor, "slack", says("Denied by Ada"))
    (approval,) = (await approvals.list_approvals(strict.db, actor, None, 10)).items
    assert (approval.status, approval.resolution_reason) == (ApprovalStatus.DENIED, "too early")


async def test_commands_work_on_both_apps(plane: PhonePlane, strict: World) -> None:
    visitor, actor = await start(plane, strict), strict.admin.actor
    for app, text in (("telegram", "/help"), ("slack", "/cortex help")):
        await write(visitor, app, text)
        await plane.until(actor, app, says("/new begins a new conversation"))


# Who may use it --------------------------------------------------------------------------------------------------------


async def test_start_links_only_whoever_pressed_it(plane: PhonePlane, strict: World) -> None:
    bea = await strict.person(Role.MEMBER, name="Bea")
    visitor = await start(plane, strict)
    linked = await senders(strict, strict.admin)
    assert set(linked) == {trial.id for trial in (await trials(strict)).values()}
    assert await senders(strict, bea) == {}
    await visitor.send(f"{TRY}/link", {"form_token": await _token(visitor)})
    assert await senders(strict, strict.admin) == linked
    await start(plane, strict, bea)
    theirs = await senders(strict, bea)
    assert set(theirs) == set(linked)
    assert not set(theirs.values()) & set(linked.values())
    entries = await audit.list_entries(strict.db, strict.admin.actor, None, 0, 1000)
    assert [entry.action for entry in entries].count("identity_linked") == 4, "once for each person and app"


async def test_phone_can_be_started_again_after_unlinking(plane: PhonePlane, strict: World) -> None:
    visitor = await start(plane, strict)
    (mapping, _) = (await connections.list_own_mappings(strict.db, strict.admin.actor, None, 10)).items
    await connections.unlink_own(strict.db, strict.admin.actor, mapping.id)
    assert "Your phone" in (await visitor.get(TRY)).text
    await start(plane, strict)
    assert len(await senders(strict, strict.admin)) == 2


async def test_nobody_reads_or_writes_in_the_chat_of_another(plane: PhonePlane, strict: World) -> None:
    bea = await strict.person(Role.MEMBER, name="Bea")
    admin, other = await start(plane, strict), await start(plane, strict, bea)
    await write(admin, "telegram", "a secret of Ada")
    assert "a secret of Ada" in (await admin.get(f"{TRY}/telegram")).text
    assert "a secret of Ada" not in (await other.get(f"{TRY}/telegram")).text
    (message,) = plane.phone.chat(strict.admin.actor, "telegram").messages
    page = await other.get(f"{TRY}/telegram")
    pressed = await other.send(
        f"{TRY}/telegram/press", {"form_token": await _token(other), "message": message.id, "data": "c1:a:x:1"}
    )
    assert pressed.status_code == 409
    assert "a secret of Ada" not in page.text


async def test_without_a_login_or_a_form_of_ours_nothing_happens(plane: PhonePlane, strict: World) -> None:
    assert (await plane.http.get(TRY)).status_code == 401
    visitor = await start(plane, strict)
    foreign = await visitor.send(f"{TRY}/telegram/write", {"text": "hello", "form_token": "x"})
    assert foreign.status_code == 403
    assert texts(plane.phone.chat(strict.admin.actor, "telegram")) == []


async def test_before_start_no_chat_can_be_used(plane: PhonePlane, strict: World) -> None:
    visitor = await log_in(plane, strict)
    page = await visitor.get(TRY)
    assert "Your phone" in page.text
    token = _hidden(page.text, "form_token")
    for path in ("telegram/write", "telegram/press", "slack/form"):
        answer = await visitor.send(f"{TRY}/{path}", {"form_token": token, "text": "hello"})
        assert answer.status_code == 404
    assert (await visitor.get(f"{TRY}/changes")).status_code == 404


async def test_other_orgs_have_no_phone(plane: PhonePlane, strict: World, other: World) -> None:
    visitor = await log_in(plane, other)
    assert (await visitor.get(TRY)).status_code == 404
    assert TRY not in (await visitor.get("/")).text
    own = await log_in(plane, strict)
    assert TRY in (await own.get("/")).text


async def test_plane_without_emulators_has_no_phone(http: httpx.AsyncClient, strict: World) -> None:
    visitor = await Visitor.log_in(http, strict)
    page = await visitor.get(TRY, Accept="text/html")
    assert page.status_code == 404
    assert "only `cortex up` runs them" in html.unescape(page.text)
    assert TRY not in (await visitor.get("/")).text


# What it shows ---------------------------------------------------------------------------------------------------------


async def test_text_of_people_and_agents_is_only_text(plane: PhonePlane, strict: World) -> None:
    visitor = await start(plane, strict)
    for app in ("telegram", "slack"):
        await write(visitor, app, HOSTILE)
        page = (await visitor.get(f"{TRY}/{app}")).text
        assert "<script>alert" not in page
        assert "onerror=alert" not in re.sub(r"&lt;.*?&gt;", "", page)
        assert "&lt;script&gt;" in page or "&lt;img" in page


async def test_too_long_and_empty_words_are_no_message(plane: PhonePlane, strict: World) -> None:
    visitor = await start(plane, strict)
    assert (await write(visitor, "telegram", "x" * 2001)).status_code == 422
    assert (await write(visitor, "telegram", "  ")).status_code == 303
    assert texts(plane.phone.chat(strict.admin.actor, "telegram")) == []


async def test_scripts_get_the_chat_alone_and_nothing_while_it_is_the_same(plane: PhonePlane, strict: World) -> None:
    visitor = await start(plane, strict)
    page = await visitor.get(f"{TRY}/telegram")
    sent = await visitor.send(
        f"{TRY}/telegram/write", {"form_token": await _token(visitor), "text": "hi"}, **{"HX-Request": "true"}
    )
    assert sent.status_code == 200
    assert "<html" not in sent.text
    assert _hidden(sent.text, "seen") != _hidden(page.text, "seen")
    seen = _hidden((await visitor.get(f"{TRY}/telegram")).text, "seen")
    async with plane.http.stream(
        "GET", f"{TRY}/changes", headers={"Cookie": f"cortex_session={visitor.cookie}"}
    ) as hints:
        lines = hints.aiter_lines()
        assert (await anext(lines)).startswith("retry:")
        plane.phone.write(strict.admin.actor, "slack", "on the other app", None)
        async for line in lines:
            if line.startswith("event: changed"):
                break
    assert (await visitor.get(f"{TRY}/telegram/live?seen=none")).status_code == 200
    now = _hidden((await visitor.get(f"{TRY}/telegram")).text, "seen")
    assert (await visitor.get(f"{TRY}/telegram/live?seen={now}")).status_code == 204
    assert len(seen) == len(now)


def test_entities_of_telegram_become_pieces_of_text() -> None:
    # The emoji counts twice.
    blocks = entity_blocks(
        "🟠 bold link\ncode\nend",
        [
            {"type": "bold", "offset": 3, "length": 4},
            {"type": "text_link", "offset": 8, "length": 4, "url": "javascript:alert(1)"},
            {"type": "pre", "offset": 13, "length": 4},
        ],
    )
    assert [block.kind for block in blocks] == [PhoneBlockKind.TEXT, PhoneBlockKind.CODE, PhoneBlockKind.TEXT]
    assert [(text.text, set(text.styles), text.url) for text in blocks[0].texts] == [
        ("🟠 ", set(), None), ("bold", {PhoneStyle.BOLD}, None), (" ", set(), None), ("link", set(), None),
    ]  # fmt: skip
    assert [[text.text for text in block.texts] for block in blocks[1:]] == [["code"], ["end"]]


def test_blocks_of_slack_become_pieces_of_text() -> None:
    item = {"type": "rich_text_section", "elements": [{"type": "text", "text": "first", "style": {"bold": True}}]}
    link = {"type": "link", "url": "https://plane.example/x"}
    blocks = rich_blocks([
        {"type": "rich_text", "elements": [
            {"type": "rich_text_list", "style": "ordered", "elements": [item]},
            {"type": "rich_text_quote", "elements": [link]},
        ]},
        {"type": "section", "text": {"type": "mrkdwn", "text": "a &lt; b"}},
        {"type": "actions", "elements": []},
    ])  # fmt: skip
    assert ["".join(text.text for text in block.texts) for block in blocks] == [
        "1. first", "https://plane.example/x", "a < b",
    ]  # fmt: skip
    assert blocks[1].texts[0].url == "https://plane.example/x"


# Where its connections work --------------------------------------------------------------------------------------------


async def test_connections_survive_a_restart_of_the_plane(strict: World) -> None:
    actor = strict.admin.actor
    await apply_policies(strict.db, actor, POLICY)
    async with plane_with_phone(strict) as first:
        visitor = await start(first, strict)
        async with working(strict.db, demo.chat_app):
            await write(visitor, "telegram", "ship 2.4")
            await first.until(actor, "telegram", says("Approval needed"))
        before = await trials(strict)
    assert await trial_connections.end_trial_connections(strict.db) == 2, "as another process does when it starts"
    async with plane_with_phone(strict) as second:
        after = await trials(strict)
        assert {kind: trial.id for kind, trial in after.items()} == {kind: trial.id for kind, trial in before.items()}
        assert [trial.disabled_at for trial in after.values()] == [None, None]
        assert all(after[kind].config["api_url"] != before[kind].config["api_url"] for kind in after)
        # The chats are empty, so what still asks comes anew; and no id of the first start is used again.
        await second.until(actor, "telegram", says("Approval needed"))
        second.phone.write(actor, "telegram", "/help", None)
        await second.until(actor, "telegram", says("/new begins a new conversation"))


async def test_other_processes_serve_no_emulated_connection(
    plane: PhonePlane, strict: World, urls: Urls, tmp_path: Path
) -> None:
    await start(plane, strict)
    async with served(urls, tmp_path) as api:
        await api.ready()
        after = await trials(strict)
        assert [trial.state for trial in after.values()] == [ConnectionState.DISABLED, ConnectionState.DISABLED]
        for trial in after.values():
            assert trial.disabled_reason == trial_connections.OVER
            async with httpx.AsyncClient(base_url=api.url, trust_env=False, headers=strict.admin.headers) as http:
                refused = await http.patch(f"/v1/connections/{trial.id}", json={"enabled": True})
                assert (refused.status_code, refused.json()["code"]) == (409, "connection_emulated")
    plane.phone.write(strict.admin.actor, "telegram", "hello", None)
    with pytest.raises(Conflict):
        await trial_connections.link_trial_sender(strict.db, strict.admin.actor, after["slack"].id, "U1")


async def test_requests_can_neither_make_nor_change_an_emulated_connection(plane: PhonePlane, strict: World) -> None:
    actor, channels = strict.admin.actor, plane.reach.served
    secrets = {"bot_token": "123456789:AAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}
    draft = ConnectionDraft(channel_type="telegram", name="mine", config={EMULATED: "yes"}, secrets=secrets)
    with pytest.raises(InvalidInput, match="has no `emulated`"):
        await connections.create_connection(strict.db, actor, draft, channels=channels)
    trial = (await trials(strict))["telegram"]
    for change in (
        ConnectionChange(config={EMULATED: None}), ConnectionChange(config={"api_url": "https://elsewhere.example"}),
        ConnectionChange(secrets=secrets),
    ):  # fmt: skip
        with pytest.raises(Conflict, match="emulator"):
            await connections.update_connection(strict.db, actor, trial.id, change, None, channels=channels)
    off = await connections.update_connection(
        strict.db, actor, trial.id, ConnectionChange(enabled=False), None, channels=channels
    )
    assert off.state is ConnectionState.DISABLED


async def test_check_asks_the_emulator_and_leaves_nothing_to_do(plane: PhonePlane, strict: World) -> None:
    for kind, trial in (await trials(strict)).items():
        channels = replace(plane.reach.served, public_url="https://plane.example")
        checked = await connections.check_connection(strict.db, strict.admin.actor, trial.id, channels=channels)
        assert (checked.state, checked.to_do) == (ConnectionState.OK, []), kind
        assert checked.inbound_url == f"{plane.address}/v1/connections/{trial.id}/inbound"
    visitor = await start(plane, strict)
    await write(visitor, "telegram", "/help")
    await plane.until(strict.admin.actor, "telegram", says("/new begins a new conversation"))


async def test_loopback_is_open_to_the_emulators_alone(plane: PhonePlane, strict: World) -> None:
    """Other ports of this machine are closed to connections of people, and webhooks have none of it."""
    secrets = {"bot_token": "123456789:AAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"}
    draft = ConnectionDraft(channel_type="telegram", name="mine", config={"api_url": plane.address}, secrets=secrets)
    with pytest.raises(InvalidInput, match="https"):
        await connections.create_connection(strict.db, strict.admin.actor, draft, channels=plane.reach.served)
    hook = ConnectionDraft(channel_type="webhook", name="hook", url=f"http://{plane.phone.addresses.split(',')[0]}/")
    with pytest.raises(InvalidInput, match="https"):
        await connections.create_connection(strict.db, strict.admin.actor, hook, channels=plane.reach.served)


async def test_forged_events_of_an_emulator_are_refused(plane: PhonePlane, strict: World) -> None:
    """Its secrets are random: what stands in the source code of the emulators opens nothing."""
    await start(plane, strict)
    trial = (await trials(strict))["telegram"]
    for secret in ("", "secret"):
        answer = await plane.http.post(
            f"/v1/connections/{trial.id}/inbound", json={"update_id": 1},
            headers={"X-Telegram-Bot-Api-Secret-Token": secret},
        )  # fmt: skip
        assert answer.status_code == 401


async def _token(visitor: Visitor) -> str:
    return _hidden((await visitor.get(TRY)).text, "form_token")


def _hidden(page: str, name: str) -> str:
    match = re.search(rf'<input type="hidden" name="{name}" value="([^"]*)"', page)
    assert match is not None
    return match[1]
