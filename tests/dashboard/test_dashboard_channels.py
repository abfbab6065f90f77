"""The pages of channels: connect, see what is wrong, change, check; and the visitor's own, with codes and claims."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from uuid import UUID

import asyncpg
import httpx
import pytest_asyncio
from starlette.datastructures import State

from cortex_plane.dashboard.qr_codes import qr_code
from cortex_plane.tenancy.model.identities import ClaimDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections, links
from tests.fixtures.people import World
from tests.fixtures.vendors import TOKEN, VendorStage, vendor_stage
from tests.fixtures.visitors import Visitor

HOSTILE = "<script>alert(1)</script> \u202eada"


@pytest_asyncio.fixture
async def stage(app_state: State) -> AsyncIterator[VendorStage]:
    async with vendor_stage() as stage:
        app_state.channels = stage.served
        yield stage


def filled(stage: VendorStage, **changes: str) -> dict[str, str]:
    fields = {
        "name": "bot", "config.api_url": stage.vendor.api_url, "secrets.bot_token": TOKEN, "config.mode": "", "agent": "deployer",
    }  # fmt: skip
    return fields | {name.replace("__", "."): value for name, value in changes.items()}


async def connect(visitor: Visitor, stage: VendorStage, **changes: str) -> httpx.Response:
    page = await visitor.get("/channels/new?channel=telegram")
    return await visitor.submit(page, "/channels", **filled(stage, **changes))


async def test_a_channel_is_connected_with_a_form(http: httpx.AsyncClient, world: World, stage: VendorStage) -> None:
    visitor = await Visitor.log_in(http, world)
    assert 'href="/channels/new?channel=telegram"' in (await visitor.get("/channels")).text
    form = (await visitor.get("/channels/new?channel=telegram")).text
    assert "BotFather shows it." in form
    assert re.search(r'<input id="secrets.bot_token"[^>]* type="password"', form)
    made = await connect(visitor, stage)
    assert made.status_code == 303, made.text
    page = (await visitor.get(made.headers["location"])).text
    assert "@cortex_bot" in page
    assert "Add the bot to your group." in page
    assert "/inbound</code>" in page
    assert TOKEN not in page
    assert "Works" in (await visitor.get("/channels")).text


async def test_what_is_wrong_with_a_value_stands_in_the_form(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    visitor = await Visitor.log_in(http, world)
    refused = await connect(visitor, stage, secrets__bot_token="9:unknown", name="kept name")
    assert refused.status_code == 422
    assert "The vendor does not know this token." in refused.text
    assert 'value="kept name"' in refused.text
    assert "9:unknown" not in refused.text, "a secret is never shown again"
    nobody = await connect(visitor, stage, agent="nobody", name="kept name")
    assert (nobody.status_code, 'value="kept name"' in nobody.text) == (404, True)
    path = (await connect(visitor, stage)).headers["location"]
    page = await visitor.get(path)
    long = await visitor.submit(page, path, **filled(stage, name="x" * 300))
    assert (long.status_code, 'id="connection-error"' in long.text) == (422, True)


async def test_a_connection_is_changed_checked_disabled_and_enabled(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    visitor = await Visitor.log_in(http, world)
    path = (await connect(visitor, stage)).headers["location"]
    page = await visitor.get(path)
    changed = await visitor.submit(page, path, **filled(stage, secrets__bot_token="78:other", name="office"))
    assert changed.status_code == 303, changed.text
    page = await visitor.get(path)
    assert "@other_bot" in page.text
    assert "office" in page.text
    stage.vendor.tokens.clear()
    failed = await visitor.submit(page, f"{path}/check")
    assert (failed.status_code, "The vendor does not know this token." in failed.text) == (422, True)
    off = await visitor.submit(page, f"{path}/disable")
    assert off.status_code == 303
    page = await visitor.get(path)
    assert "Disabled" in page.text
    assert (await visitor.submit(page, f"{path}/enable")).status_code == 303


async def test_an_error_is_shown_as_text(
    http: httpx.AsyncClient, world: World, stage: VendorStage, admin: asyncpg.Connection
) -> None:
    visitor = await Visitor.log_in(http, world)
    path = (await connect(visitor, stage)).headers["location"]
    await admin.execute(
        "update channel_connection set disabled_at = plane_now(), disabled_reason = $2 where id = $1",
        UUID(path.rpartition("/")[2]), HOSTILE,
    )  # fmt: skip
    for shown in (await visitor.get(path), await visitor.get("/channels")):
        assert "<script>alert" not in shown.text
        assert "\u202e" not in shown.text


async def test_only_admins_change_connections(http: httpx.AsyncClient, world: World, stage: VendorStage) -> None:
    made = await stage.connect(world)
    visitor = await Visitor.log_in(http, world, await world.person(Role.MEMBER, name="Mel"))
    assert (await visitor.get("/channels/new?channel=telegram")).status_code == 403
    page = await visitor.get(f"/channels/{made.id}")
    assert "Change it" not in page.text


async def test_a_code_is_shown_with_how_to_send_it_and_binds_after_a_confirmation(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    bot = await stage.connect_id(world)
    visitor = await Visitor.log_in(http, world)
    page = await visitor.get("/access/channels")
    answer = await visitor.submit(page, "/access/channels/code")
    assert (answer.status_code, answer.headers["cache-control"]) == (201, "no-store")
    match = re.search(r'id="link-code">([0-9A-Z-]+)<', answer.text)
    assert match
    code = match[1]
    assert f"/link {code}" in answer.text
    assert f'href="https://t.me/cortex_bot?start={code}"' in answer.text
    assert str(qr_code(f"https://t.me/cortex_bot?start={code}")) in answer.text
    draft = ClaimDraft(code=code, external_user_id="4711", display_name="@ada")
    mapping = await links.claim_link(world.db, world.service.actor, bot, draft)
    waiting = await visitor.get("/access/channels")
    assert "Telegram user <bdi>@ada</bdi> asked to be linked to you" in waiting.text
    confirmed = await visitor.submit(waiting, f"/access/channels/claims/{mapping.id}/confirm")
    assert confirmed.status_code == 303
    own = await visitor.get("/access/channels")
    assert "asked to be linked" not in own.text
    assert "not used yet" in own.text
    assert (await visitor.submit(own, f"/access/channels/{mapping.id}/unlink")).status_code == 303
    assert "No channel is linked to you" in (await visitor.get("/access/channels")).text


async def test_a_claim_of_somebody_else_is_refused_on_the_page(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    bot = await stage.connect_id(world)
    visitor = await Visitor.log_in(http, world)
    code = (await links.issue_link_code(world.db, world.admin.actor)).code
    draft = ClaimDraft(code=code, external_user_id="666", display_name="mallory \u202e")
    mapping = await links.claim_link(world.db, world.service.actor, bot, draft)
    page = await visitor.get("/access/channels")
    assert "\u202e" not in page.text
    assert (await visitor.submit(page, f"/access/channels/claims/{mapping.id}/refuse")).status_code == 303
    assert (await connections.list_own_mappings(world.db, world.admin.actor, None, 10)).items == []


async def test_when_somebody_last_wrote_is_shown(http: httpx.AsyncClient, world: World, stage: VendorStage) -> None:
    code = (await links.issue_link_code(world.db, world.admin.actor)).code
    draft = ClaimDraft(code=code, external_user_id="4711", display_name="@ada")
    mapping = await links.claim_link(world.db, world.service.actor, world.connection.id, draft)
    await links.confirm_link(world.db, world.admin.actor, mapping.id)
    await world.say("Hello", "4711")
    visitor = await Visitor.log_in(http, world)
    assert "last used" in (await visitor.get("/access/channels")).text
    shown = await connections.get_connection(world.db, world.admin.actor, world.connection.id)
    assert shown.health.last_inbound_at is not None
    assert "Last message in" in (await visitor.get("/channels")).text
