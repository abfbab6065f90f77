from __future__ import annotations

import asyncpg
import httpx
import pytest

from tests.fixtures.people import World
from tests.fixtures.rows import digests


async def test_a_connection_is_made_renamed_and_unique_by_type_and_name(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    draft = {"channel_type": "x-slack", "name": "workspace"}
    made = await http.post("/v1/connections", json=draft, headers=headers)
    assert made.status_code == 201
    taken = await http.post("/v1/connections", json=draft, headers=headers)
    assert (taken.status_code, taken.json()["code"]) == (409, "already_exists")
    elsewhere = {"channel_type": "x-telegram", "name": "workspace"}
    assert (await http.post("/v1/connections", json=elsewhere, headers=headers)).status_code == 201
    path = f"/v1/connections/{made.json()['id']}"
    renamed = await http.patch(path, json={"name": "office"}, headers=headers)
    assert (renamed.json()["name"], renamed.json()["channel_type"]) == ("office", "x-slack")
    assert (await http.get(path, headers=headers)).json() == renamed.json()


async def test_a_disabled_connection_takes_nothing_in_until_it_is_enabled(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    path = f"/v1/connections/{world.connection.id}"
    inbound = {"external_user_id": "u-1", "agent": "deployer", "text": "Hello"}
    off = await http.patch(path, json={"enabled": False}, headers=world.admin.headers)
    assert off.json()["disabled_at"] is not None
    before = await digests(admin)
    refused = await http.post(f"{path}/messages", json=inbound, headers=world.service.headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "connection_disabled")
    assert await digests(admin) == before
    on = await http.patch(path, json={"enabled": True}, headers=world.admin.headers)
    assert on.json()["disabled_at"] is None
    taken = await http.post(f"{path}/messages", json=inbound, headers=world.service.headers)
    assert taken.status_code == 201


@pytest.mark.proves("S2.6")
async def test_people_are_told_apart_by_connection_and_id(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    second = await http.post(
        "/v1/connections", json={"channel_type": "web", "name": "shop"}, headers=world.admin.headers
    )
    inbound = {
        "external_user_id": "u-1", "agent": "deployer", "text": "Hello", "display_name": "Uma",
        "metadata": {"locale": "de"},
    }  # fmt: skip
    first = await world.say("Hello", "u-1")
    elsewhere = await http.post(
        f"/v1/connections/{second.json()['id']}/messages", json=inbound, headers=world.service.headers
    )
    assert elsewhere.json()["user_account_id"] != str(first.user_account_id)
    row = await admin.fetchrow(
        "select u.display_name, m.metadata::text from channel_mapping m join user_account u"
        " on u.id = m.user_account_id where m.connection_id = $1",
        second.json()["id"],
    )
    assert tuple(row) == ("Uma", '{"locale": "de"}')
