"""Connections that work or say why: fields, the vendor's word, health, and what is left to do."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
import pytest_asyncio
from starlette.datastructures import State

from cortex_plane.kernel.errors import InvalidInput
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import connections
from tests.channels.behaviour import link
from tests.fixtures.people import World
from tests.fixtures.receivers import Reply
from tests.fixtures.vendors import TOKEN, VendorStage, vendor_stage


@pytest_asyncio.fixture
async def stage(app_state: State) -> AsyncIterator[VendorStage]:
    async with vendor_stage() as stage:
        app_state.channels = stage.served
        yield stage


def body(stage: VendorStage, **changes: Any) -> dict[str, Any]:
    draft = {
        "channel_type": "telegram", "name": "bot", "secrets": {"bot_token": TOKEN},
        "config": {"api_url": stage.vendor.api_url},
    }  # fmt: skip
    return draft | changes


async def create(http: httpx.AsyncClient, world: World, draft: dict[str, Any], **headers: str) -> httpx.Response:
    return await http.post("/v1/connections", json=draft, headers=world.admin.headers | headers)


@pytest.mark.proves("D.827")
async def test_a_vendor_says_who_a_new_connection_is(
    http: httpx.AsyncClient, world: World, stage: VendorStage, admin: asyncpg.Connection
) -> None:
    made = (await create(http, world, body(stage, agent="deployer"))).json()
    assert (made["account"], made["state"], made["agent_id"]) == ("@cortex_bot", "ok", str(world.agent.id))
    assert made["inbound_url"] == f"https://plane.example/v1/connections/{made['id']}/inbound"
    assert made["to_do"] == ["Add the bot to your group."]
    assert made["config"] == {"api_url": stage.vendor.api_url, "username": "cortex_bot"}
    assert stage.vendor.inbound[TOKEN] == made["inbound_url"]
    assert TOKEN not in str(made)
    assert "s3cret" not in str(made)
    row = await admin.fetchrow(
        "select sealed, set_up_by, external_id from channel_connection where id = $1", UUID(made["id"])
    )
    assert row is not None
    assert TOKEN.encode() not in row["sealed"]
    assert (row["set_up_by"], row["external_id"]) == ([world.admin.member_id], "77")
    shown = await http.get(f"/v1/connections/{made['id']}", headers=world.admin.headers)
    assert shown.json() == {name: value for name, value in made.items() if name != "secret"}
    (entry,) = [e for e in await audit.list_entries(world.db, world.admin.actor, None, 0, 1000) if made["id"] in str(e)]
    assert entry.action == "connection_created"
    assert "@cortex_bot" in str(entry)
    assert TOKEN not in str(entry)


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        ({"secrets": {}}, "secrets.bot_token", "needs `bot_token`: BotFather shows it."),
        ({"secrets": {"bot_token": "77"}}, "secrets.bot_token", "`bot_token` is not written like one."),
        ({"secrets": {"bot_token": TOKEN, "color": "red"}}, "secrets.color", "has no `color`"),
        ({"config": {"bot_token": TOKEN}}, "config.bot_token", "`bot_token` is a secret."),
        ({"config": {"mode": "carrier"}}, "config.mode", "`mode` is one of webhook, polling."),
        ({"secrets": {"bot_token": "9:unknown"}}, "secrets.bot_token", "The vendor does not know this token."),
    ],
)
async def test_a_value_that_is_wrong_is_named(
    http: httpx.AsyncClient, world: World, stage: VendorStage, change: dict[str, Any], field: str, message: str
) -> None:
    config = {"config": {"api_url": stage.vendor.api_url} | change.get("config", {})}
    refused = await create(http, world, body(stage, **{**change, **config}))
    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, field)
    assert message in refused.json()["detail"]
    assert "9:unknown" not in refused.text
    listed = (await http.get("/v1/connections", headers=world.admin.headers)).json()["items"]
    assert [each["channel_type"] for each in listed] == ["web"], "nothing was stored"


@pytest.mark.proves("D.827")
async def test_a_channel_that_is_not_served_is_refused(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    refused = (await create(http, world, {"channel_type": "slack", "name": "office"})).json()
    assert refused["code"] == "channel_not_served"
    assert refused["detail"] == "This plane does not serve slack; it serves email, telegram, webhook."
    assert (await create(http, world, {"channel_type": "x-pager", "name": "own"})).status_code == 201


async def test_a_vendor_that_does_not_answer_stores_nothing(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    stage.vendor.outage = Reply(503)
    refused = await create(http, world, body(stage))
    assert (refused.status_code, refused.json()["code"]) == (424, "delivery_failed")
    assert refused.json()["hint"] == "Nothing was changed. Try again once its vendor answers."
    stage.vendor.outage = None
    assert (await create(http, world, body(stage))).status_code == 201


async def test_a_repeated_request_asks_the_vendor_once(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    first = await create(http, world, body(stage), **{"Idempotency-Key": "k"})
    again = await create(http, world, body(stage), **{"Idempotency-Key": "k"})
    assert first.json()["id"] == again.json()["id"]
    assert len(stage.vendor.got) == 1
    taken = await create(http, world, body(stage))
    assert taken.json()["code"] == "already_exists"
    assert stage.vendor.inbound[TOKEN] == first.json()["inbound_url"], "the refused one did not take its place"


async def test_a_new_secret_is_tried_before_it_replaces_the_old_one(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    path = f"/v1/connections/{await stage.connect_id(world)}"
    refused = await http.patch(path, json={"secrets": {"bot_token": "9:unknown"}}, headers=world.admin.headers)
    assert refused.json()["errors"][0]["field"] == "secrets.bot_token"
    checked = await http.post(f"{path}/check", headers=world.admin.headers)
    assert checked.json()["account"] == "@cortex_bot", "the old one still works"
    changed = await http.patch(path, json={"secrets": {"bot_token": "78:other"}}, headers=world.admin.headers)
    assert changed.json()["account"] == "@other_bot"
    assert changed.json()["config"]["username"] == "other_bot"


async def test_who_changed_a_value_and_a_vote_through_the_connection_are_one_human(
    http: httpx.AsyncClient, world: World, stage: VendorStage, admin: asyncpg.Connection
) -> None:
    """Who chooses the server or how events come in may choose one that vouches for senders as they like."""
    id = await stage.connect_id(world)
    bob = await world.person(Role.ADMIN, name="Bob")
    await http.patch(f"/v1/connections/{id}", json={"name": "the bot"}, headers=bob.headers)
    query = "select set_up_by from channel_connection where id = $1"
    assert await admin.fetchval(query, id) == [world.admin.member_id]
    changed = await http.patch(f"/v1/connections/{id}", json={"config": {"mode": "polling"}}, headers=bob.headers)
    assert changed.status_code == 200, changed.text
    assert await admin.fetchval(query, id) == [world.admin.member_id, bob.member_id]


async def test_another_server_gets_no_secret_that_was_not_sent_again(
    http: httpx.AsyncClient, world: World, stage: VendorStage, admin: asyncpg.Connection
) -> None:
    """An admin who does not know the token must not learn it from the server that it goes to, nor sign as anybody."""
    id = await stage.connect_id(world)
    other = await world.person(Role.ADMIN, name="Odo")
    async with vendor_stage() as elsewhere:
        change: dict[str, Any] = {"config": {"api_url": elsewhere.vendor.api_url}}
        refused = await http.patch(f"/v1/connections/{id}", json=change, headers=other.headers)
        assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "config.api_url")
        assert elsewhere.vendor.inbound == {}, "nothing was sent there"
        change |= {"secrets": {"bot_token": TOKEN}}
        assert (await http.patch(f"/v1/connections/{id}", json=change, headers=other.headers)).status_code == 200
    set_up_by = await admin.fetchval("select set_up_by from channel_connection where id = $1", id)
    assert other.member_id in set_up_by


async def test_a_check_that_fails_changes_nothing_and_says_why(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    path = f"/v1/connections/{await stage.connect_id(world)}"
    before = (await http.get(path, headers=world.admin.headers)).json()
    stage.vendor.tokens.clear()
    refused = await http.post(f"{path}/check", headers=world.admin.headers)
    assert refused.json()["detail"] == "The vendor does not know this token."
    assert (await http.get(path, headers=world.admin.headers)).json() == before
    nobody = await http.post(f"/v1/connections/{world.connection.id}/check", headers=world.admin.headers)
    assert (nobody.status_code, nobody.json()["checked_at"]) == (200, None), "it has no vendor"


async def test_a_second_connection_to_one_account_is_warned_of(world: World, stage: VendorStage) -> None:
    await stage.connect(world, "first")
    second = await stage.connect(world, "second")
    assert "The connection first is @cortex_bot too" in second.to_do[-1]


async def test_without_a_public_address_only_an_emulator_here_gets_one(world: World) -> None:
    async with vendor_stage(public_url=None) as stage:
        local = await stage.connect(world)
        assert local.inbound_url == f"http://127.0.0.1:8420/v1/connections/{local.id}/inbound"
        assert stage.served.inbound_url("telegram", local.id, {}) is None


async def test_the_plane_says_what_a_connection_of_each_channel_needs(
    http: httpx.AsyncClient, world: World, stage: VendorStage
) -> None:
    served = (await http.get("/v1/channels", headers=world.admin.headers)).json()["items"]
    (telegram,) = [each for each in served if each["channel_type"] == "telegram"]
    assert [(field["name"], field["secret"]) for field in telegram["fields"]] == [
        ("bot_token", True), ("mode", False), ("api_url", False),
    ]  # fmt: skip


async def test_who_set_the_secret_and_a_vote_through_the_connection_are_one_human(
    world: World, stage: VendorStage, admin: asyncpg.Connection
) -> None:
    bea = await world.person(Role.APPROVER, name="Bea")
    await link(admin, world, await stage.connect_id(world), bea, "4711")

    async def behind(channel: str) -> set[UUID]:
        query = "select humans_behind(u, $2, 'infinity') from user_account u where u.id = $1"
        return set(await admin.fetchval(query, bea.member_id, channel))

    assert await behind("telegram") == {bea.member_id, world.admin.member_id}
    for channel in ("dashboard", "api", "email", "slack"):
        assert await behind(channel) == {bea.member_id}, channel


async def test_values_are_no_place_for_much(world: World) -> None:
    draft = ConnectionDraft(channel_type="webhook", name="hook", url="https://hooks.example/", config={"a": "b"})
    with pytest.raises(InvalidInput):
        await connections.create_connection(world.db, world.admin.actor, draft)
    with pytest.raises(ValueError, match="at most 4096"):
        ConnectionDraft(channel_type="web", name="big", config={"a": "b" * 5000})
