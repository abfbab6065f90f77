from __future__ import annotations

import asyncio

import asyncpg
import httpx
import pytest

from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World, with_key
from tests.fixtures.rows import digests


@pytest.mark.proves("S4.1")
async def test_a_member_has_roles_a_clearance_and_teams(http: httpx.AsyncClient, world: World) -> None:
    headers = world.admin.headers
    ops = (await http.post("/v1/teams", json={"slug": "ops", "name": "Ops"}, headers=headers)).json()
    made = await http.post(
        "/v1/members",
        json={
            "display_name": "  Mel  ", "clearance": 3, "roles": ["operator", "approver", "operator"],
            "teams": ["main", ops["id"]],
        },
        headers=headers,
    )  # fmt: skip
    member = made.json()
    assert made.status_code == 201
    assert (member["display_name"], member["clearance"]) == ("Mel", 3)
    assert member["roles"] == ["approver", "operator"]
    assert len(member["team_ids"]) == 2
    path = f"/v1/members/{member['id']}"
    changed = await http.patch(
        path,
        json={"clearance": 9, "teams": ["ops"], "roles": ["steward"]},
        headers={**headers, "If-Match": made.headers["ETag"]},
    )
    assert changed.json()["team_ids"] == [ops["id"]]
    assert (changed.json()["clearance"], changed.json()["roles"]) == (9, ["steward"])
    assert changed.json()["display_name"] == "Mel"
    stale = await http.patch(path, json={"clearance": 0}, headers={**headers, "If-Match": made.headers["ETag"]})
    assert stale.status_code == 412
    stewards = await http.get("/v1/members", params={"role": "steward"}, headers=headers)
    assert [each["id"] for each in stewards.json()["items"]] == [member["id"]]


async def test_unknown_teams_are_named_and_nothing_is_kept(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    before = await digests(admin)
    draft = {"display_name": "Mel", "teams": ["main", "moon", "mars"]}
    refused = await http.post("/v1/members", json=draft, headers=world.admin.headers)
    assert (refused.status_code, refused.json()["code"]) == (404, "team_not_found")
    assert "moon, mars" in refused.json()["detail"]
    assert await digests(admin) == before


async def test_a_team_is_named_by_its_slug_or_by_its_id_however_it_is_spelled(
    http: httpx.AsyncClient, world: World
) -> None:
    main = (await http.get("/v1/teams/main", headers=world.admin.headers)).json()["id"]
    for spelled in ("main", main, main.upper(), main.replace("-", "")):
        draft = {"display_name": "Mel", "teams": [spelled, "main"]}
        made = await http.post("/v1/members", json=draft, headers=world.admin.headers)
        assert (made.status_code, made.json().get("team_ids")) == (201, [main]), spelled


async def test_the_last_admin_stays(http: httpx.AsyncClient, world: World, admin: asyncpg.Connection) -> None:
    path = f"/v1/members/{world.admin.actor.user_account_id}"
    before = await digests(admin)
    for change in ({"roles": ["member"]}, {"active": False}, {"roles": ["guest"], "active": False}):
        refused = await http.patch(path, json=change, headers=world.admin.headers)
        assert (refused.status_code, refused.json()["code"]) == (409, "last_admin")
    assert await digests(admin) == before
    gone = await world.person(Role.ADMIN, name="Gone")
    gone_path = f"/v1/members/{gone.actor.user_account_id}"
    await http.patch(gone_path, json={"active": False}, headers=world.admin.headers)
    refused = await http.patch(path, json={"active": False}, headers=world.admin.headers)
    assert refused.json()["code"] == "last_admin", "a deactivated admin does not count"
    await world.person(Role.ADMIN, name="Bob")
    allowed = await http.patch(path, json={"roles": ["member"]}, headers=world.admin.headers)
    assert allowed.status_code == 200


async def test_two_admins_who_demote_each_other_over_http(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    bob = await world.person(Role.ADMIN, name="Bob")
    answers = await asyncio.gather(
        *(
            http.patch(
                f"/v1/members/{target.actor.user_account_id}", json={"roles": ["member"]}, headers=caller.headers
            )
            for caller, target in ((world.admin, bob), (bob, world.admin))
        )
    )
    assert sorted(answer.status_code for answer in answers) in ([200, 403], [200, 409])
    assert await admin.fetchval("select count(*) from user_account where 'admin' = any (roles)") == 1


async def test_a_deactivated_member_is_out_at_once_and_may_come_back(http: httpx.AsyncClient, world: World) -> None:
    mel = await world.person(Role.OPERATOR, name="Mel")
    path = f"/v1/members/{mel.actor.user_account_id}"
    assert (await http.get("/v1/me", headers=mel.headers)).status_code == 200
    off = await http.patch(path, json={"active": False}, headers=world.admin.headers)
    assert off.json()["deactivated_at"] is not None
    refused = await http.get("/v1/me", headers=mel.headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "member_deactivated")
    on = await http.patch(path, json={"active": True}, headers=world.admin.headers)
    assert on.json()["deactivated_at"] is None
    assert (await http.get("/v1/me", headers=mel.headers)).json()["code"] == "key_revoked"
    back = await with_key(world.db, world.org_id, mel.member_id)
    assert (await http.get("/v1/me", headers=back.headers)).status_code == 200


async def test_a_guest_has_a_mapping_and_can_be_shut_out(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    delivery = await world.say("Hello", "u-7")
    path = f"/v1/members/{delivery.user_account_id}"
    guest = (await http.get(path, headers=world.admin.headers)).json()
    assert (guest["roles"], guest["display_name"], guest["clearance"]) == (["guest"], "u-7", 0)
    (mapping,) = (await http.get(f"{path}/mappings", headers=world.admin.headers)).json()["items"]
    assert (mapping["channel_type"], mapping["channel_user_id"]) == ("web", "u-7")
    assert mapping["connection_id"] == str(world.connection.id)
    assert mapping["verified_at"] is not None
    await http.patch(path, json={"active": False}, headers=world.admin.headers)
    before = await digests(admin)
    refused = await http.post(
        f"/v1/connections/{world.connection.id}/messages",
        json={"external_user_id": "u-7", "agent": "deployer", "text": "Let me in"},
        headers=world.service.headers,
    )
    assert (refused.status_code, refused.json()["code"]) == (403, "member_deactivated")
    assert await digests(admin) == before
