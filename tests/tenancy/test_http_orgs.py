from __future__ import annotations

import asyncpg
import httpx
import pytest

from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.people import World
from tests.fixtures.rows import digests


@pytest.mark.proves("D.22")
async def test_a_platform_key_creates_an_org_and_acts_in_it_visibly(http: httpx.AsyncClient, world: World) -> None:
    made = await http.post(
        "/v1/orgs", json={"slug": "third", "name": "Third", "admin_name": "Tia"}, headers=world.admin.headers
    )
    assert made.status_code == 201
    new = made.json()
    assert new["org"]["slug"] == "third"
    assert new["org"]["settings"] == {"guests_may_chat": True}
    redeemed = await http.post("/v1/enrolments", json={"code": new["enrolment"]["code"]})
    tia = {"Authorization": f"Bearer {redeemed.json()['secret']}"}
    me = (await http.get("/v1/me", headers=tia)).json()
    assert (me["name"], me["roles"], me["platform"]) == ("Tia", ["admin"], False)
    assert [team["slug"] for team in (await http.get("/v1/teams", headers=tia)).json()["items"]] == ["main"]

    inside = {**world.admin.headers, "Cortex-Org": "third"}
    seen = (await http.get("/v1/me", headers=inside)).json()
    assert (seen["org_id"], seen["kind"], seen["member_id"]) == (new["org"]["id"], "platform", None)
    created = await http.post("/v1/teams", json={"slug": "ops", "name": "Ops"}, headers=inside)
    assert created.status_code == 201
    trail = (await http.get("/v1/audit", headers=tia)).json()["items"]
    of_platform = ["org_created", "enrolment_code_created", "team_created"]
    assert [entry["action"] for entry in trail] == [*of_platform[:2], "enrolled", "key_created", of_platform[2]]
    for entry in trail:
        if entry["action"] not in of_platform:
            continue
        actor = entry["body"]["actor"]
        assert (actor["kind"], actor["name"], actor["account"]) == ("platform", "Ada", None)
    slugs = [org["slug"] for org in (await http.get("/v1/orgs", headers=world.admin.headers)).json()["items"]]
    assert slugs == ["third", "acme"]


async def test_a_slug_names_one_org(http: httpx.AsyncClient, world: World, other: World) -> None:
    again = await http.post("/v1/orgs", json={"slug": "rival", "name": "Rival"}, headers=world.admin.headers)
    assert (again.status_code, again.json()["code"]) == (409, "already_exists")


async def test_an_admin_changes_the_name_and_the_settings(http: httpx.AsyncClient, world: World) -> None:
    seen = await http.get("/v1/org", headers=world.admin.headers)
    changed = await http.patch(
        "/v1/org",
        json={"name": "Acme Ltd", "settings": {"guests_may_chat": False}},
        headers={**world.admin.headers, "If-Match": seen.headers["ETag"]},
    )
    assert changed.status_code == 200
    assert (changed.json()["name"], changed.json()["settings"]) == ("Acme Ltd", {"guests_may_chat": False})
    assert changed.headers["ETag"] != seen.headers["ETag"]
    kept = await http.patch("/v1/org", json={"name": "Acme"}, headers=world.admin.headers)
    assert kept.json()["settings"] == {"guests_may_chat": False}


@pytest.mark.proves("D.22")
async def test_an_org_may_refuse_people_whom_nobody_invited(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    known = await world.say("Hello", "u-known")
    await http.patch("/v1/org", json={"settings": {"guests_may_chat": False}}, headers=world.admin.headers)
    before = await digests(admin)
    path = f"/v1/connections/{world.connection.id}/messages"
    inbound = {"external_user_id": "u-stranger", "agent": "deployer", "text": "Hi"}
    refused = await http.post(path, json=inbound, headers=world.service.headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "guests_not_allowed")
    assert await digests(admin) == before
    # A guest stays one whom nobody invited, until an admin makes a member of them.
    inbound["external_user_id"] = "u-known"
    refused = await http.post(path, json=inbound, headers=world.service.headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "guests_not_allowed")
    assert await digests(admin) == before
    member = f"/v1/members/{known.user_account_id}"
    await http.patch(member, json={"roles": ["member"]}, headers=world.admin.headers)
    again = await world.say("Still me", "u-known")
    assert again.session_id == known.session_id


async def test_platform_power_ends_with_the_role_of_admin(http: httpx.AsyncClient, world: World, other: World) -> None:
    successor = await world.person(Role.ADMIN)
    elsewhere = {**world.admin.headers, "Cortex-Org": "rival"}
    assert (await http.get("/v1/members", headers=elsewhere)).status_code == 200
    me = f"/v1/members/{world.admin.actor.user_account_id}"
    demoted = await http.patch(me, json={"roles": ["guest"]}, headers=successor.headers)
    assert demoted.status_code == 200
    assert (await http.get("/v1/orgs", headers=world.admin.headers)).status_code == 403
    assert (await http.get("/metrics", headers=world.admin.headers)).status_code == 403
    assert (await http.get("/v1/members", headers=elsewhere)).json()["code"] == "org_not_found"
    assert other.org_id
