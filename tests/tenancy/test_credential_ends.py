"""Ending a credential ends what came from it; people see and end their browser sessions, admins those of others."""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime, timedelta

import asyncpg
import httpx
import pytest

from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.orgs import Role
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.clock import Clock
from tests.fixtures.credentials import link_for
from tests.fixtures.people import World, with_key
from tests.fixtures.visitors import Visitor

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


@pytest.mark.proves("D.461")
async def test_a_session_ends_with_the_key_it_was_made_with(http: httpx.AsyncClient, world: World) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    visitor = await Visitor.log_in(http, world, grace)
    unused = await http.post("/v1/me/login-links", headers=grace.headers)
    assert (await visitor.get("/")).status_code == 200
    revoked = await http.post(f"/v1/keys/{grace.actor.key_id}/revoke", headers=world.admin.headers)
    assert revoked.status_code == 200
    assert (await visitor.get("/")).status_code == 401
    assert (await http.post(unused.json()["url_path"])).status_code == 401


@pytest.mark.proves("D.461")
async def test_reactivation_does_not_revive_old_keys(http: httpx.AsyncClient, world: World) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    address = f"/v1/members/{grace.member_id}"
    for active in (False, True):
        answer = await http.patch(address, json={"active": active}, headers=world.admin.headers)
        assert answer.status_code == 200
    refused = await http.get("/v1/me", headers=grace.headers)
    assert (refused.status_code, refused.json()["code"]) == (401, "key_revoked")


@pytest.mark.proves("D.461")
async def test_a_key_ends_with_the_key_it_was_made_with(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    child = await http.post("/v1/me/keys", json={"name": "laptop"}, headers=grace.headers)
    bearer = {"Authorization": f"Bearer {child.json()['secret']}"}
    visitor = await Visitor.log_in(http, world, grace)
    page = await visitor.submit(await visitor.get("/access"), "/access/keys", name="from the page")
    assert page.status_code == 201
    (shown,) = re.findall(r"<code>(cortex_key_[\w-]{43})</code>", page.text)
    grandchild = await http.post("/v1/me/keys", json={"name": "phone"}, headers=bearer)
    others = [bearer, *({"Authorization": f"Bearer {s}"} for s in (shown, grandchild.json()["secret"]))]
    kept = await with_key(world.db, world.org_id, grace.member_id)
    for headers in (grace.headers, kept.headers, *others):
        assert (await http.get("/v1/me", headers=headers)).status_code == 200
    revoked = await http.post(f"/v1/me/keys/{grace.actor.key_id}/revoke", headers=grace.headers)
    assert revoked.status_code == 200
    for headers in (grace.headers, *others):
        refused = await http.get("/v1/me", headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (401, "key_revoked")
    assert (await http.get("/v1/me", headers=kept.headers)).status_code == 200, "it came from nothing that ended"
    assert await admin.fetchval("select count(*) from browser_session") == 0


@pytest.mark.proves("D.461")
async def test_a_session_ends_when_its_key_expires(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    grace = await world.person(Role.APPROVER, name="Grace")
    brief = await http.post("/v1/me/keys", json={"name": "brief", "expires_in_days": 1}, headers=grace.headers)
    bearer = {"Authorization": f"Bearer {brief.json()['secret']}"}
    link = (await http.post("/v1/me/login-links", headers=bearer)).json()["url_path"]
    visitor = Visitor(http, (await http.post(link)).cookies["cortex_session"])
    http.cookies.clear()
    (session,) = (await http.get("/v1/me/browser-sessions", headers=grace.headers)).json()["items"]
    assert session["key_name"] == "brief"
    for _ in range(3):
        await clock.advance(timedelta(hours=7))
        assert (await visitor.get("/")).status_code == 200
    await clock.advance(timedelta(hours=3))
    assert (await visitor.get("/")).status_code == 401
    assert (await http.get("/v1/me/browser-sessions", headers=grace.headers)).json()["items"] == []


@pytest.mark.proves("D.461")
async def test_nothing_of_a_deactivated_member_comes_back(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    visitor = await Visitor.log_in(http, world, grace)
    link = (await http.post("/v1/me/login-links", headers=grace.headers)).json()["url_path"]
    await http.post("/v1/me/link-codes", headers=grace.headers)
    for active in (False, True):
        await http.patch(f"/v1/members/{grace.member_id}", json={"active": active}, headers=world.admin.headers)
    assert (await visitor.get("/")).status_code == 401
    assert (await http.post(link)).status_code == 401
    assert await admin.fetchval("select count(*) from identity_code where used_at is null") == 0


@pytest.mark.proves("D.461")
async def test_signed_links_from_before_a_deactivation_stay_dead(http: httpx.AsyncClient, strict: World) -> None:
    grace = await strict.person(Role.APPROVER, name="Grace")
    _, (before,) = await waiting(strict, Shipping())
    sent = await link_for(strict, before, to=grace)
    assert (await http.get(sent)).status_code == 200
    for active in (False, True):
        path = f"/v1/members/{grace.member_id}"
        await http.patch(path, json={"active": active}, headers=strict.admin.headers)
    refused = await http.get(sent)
    assert (refused.status_code, "Log in" in refused.text) == (403, True)
    _, (after,) = await waiting(strict, Shipping(), slug="second")
    assert (await http.get(await link_for(strict, after, to=grace))).status_code == 200


@pytest.mark.proves("D.462")
async def test_people_end_their_own_sessions_and_admins_those_of_others(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    grace, mel = await world.person(Role.APPROVER, name="Grace"), await world.person(Role.MEMBER, name="Mel")
    first, second = [await Visitor.log_in(http, world, grace) for _ in range(2)]
    of_mel = await Visitor.log_in(http, world, mel)
    mine = (await http.get("/v1/me/browser-sessions", headers=grace.headers)).json()["items"]
    assert [session["member_id"] for session in mine] == [str(grace.member_id)] * 2
    assert {"key_id", "created_at", "last_seen_at", "expires_at"} <= mine[0].keys()
    theirs = f"/v1/members/{mel.member_id}/browser-sessions"
    (session,) = (await http.get(theirs, headers=world.admin.headers)).json()["items"]
    for headers in (grace.headers, world.service.headers):
        assert (await http.get(theirs, headers=headers)).status_code == 403
        assert (await http.delete(theirs, headers=headers)).status_code == 403
    for path in (f"/v1/me/browser-sessions/{session['id']}", f"/v1/me/browser-sessions/{new_id()}"):
        missing = await http.delete(path, headers=grace.headers)
        assert (missing.status_code, missing.json()["code"]) == (404, "browser_session_not_found")
    foreign = await http.delete(f"{theirs}/{session['id']}", headers=other.admin.headers)
    assert foreign.status_code == 404
    assert (await of_mel.get("/")).status_code == 200, "nothing was ended so far"

    ended = await http.delete(f"/v1/me/browser-sessions/{mine[0]['id']}", headers=grace.headers)
    assert ended.status_code == 204
    assert [(await visitor.get("/")).status_code for visitor in (first, second)] == [200, 401]
    assert (await http.delete(f"{theirs}/{session['id']}", headers=world.admin.headers)).status_code == 204
    assert (await of_mel.get("/")).status_code == 401
    all_of_them = await http.delete(f"/v1/members/{grace.member_id}/browser-sessions", headers=world.admin.headers)
    assert all_of_them.json() == {"ended": 1}
    assert (await first.get("/")).status_code == 401
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    ends = [entry.action for entry in trail if entry.action.startswith("browser_session")]
    assert ends == ["browser_session_ended", "browser_session_ended", "browser_sessions_ended"]


@pytest.mark.proves("D.462")
async def test_the_page_shows_and_ends_sessions_and_keys(http: httpx.AsyncClient, world: World) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    here, there = [await Visitor.log_in(http, world, grace) for _ in range(2)]
    page = await here.get("/access")
    assert page.text.count("This browser") == 1
    assert "Somebody else" not in page.text
    (action,) = set(re.findall(r'action="(/access/sessions/[0-9a-f-]{36}/end)"', page.text))
    assert (await here.submit(page, action)).status_code == 303
    assert [(await visitor.get("/access")).status_code for visitor in (here, there)] == [200, 401]
    third = await Visitor.log_in(http, world, grace)
    assert (await here.submit(await here.get("/access"), "/access/sessions/end")).status_code == 303
    assert [(await visitor.get("/access")).status_code for visitor in (here, third)] == [200, 401]
    wrong = await here.submit(await here.get("/access"), "/access/keys", name=" ", expires_in_days="many")
    assert (wrong.status_code, "needs a name" in wrong.text) == (422, True)

    owner = await Visitor.log_in(http, world)
    page = await owner.get(f"/access?member={grace.member_id}")
    (action,) = re.findall(r'action="(/access/members/[^"]+/end)"', page.text)
    assert (await owner.submit(page, action)).status_code == 303
    assert (await here.get("/access")).status_code == 401
    assert "not logged in anywhere" in (await owner.get(f"/access?member={grace.member_id}")).text
    page = await owner.get("/access")
    revoked = await owner.submit(page, f"/access/keys/{world.admin.actor.key_id}/revoke")
    assert revoked.status_code == 303
    assert (await owner.get("/access")).status_code == 401, "this session came from that key"


@pytest.mark.proves("D.461")
async def test_no_session_outlives_a_key_that_is_revoked_while_its_link_is_used(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    for _ in range(10):
        grace = await world.person(Role.APPROVER, name="Grace")
        link = (await http.post("/v1/me/login-links", headers=grace.headers)).json()["url_path"]
        answers = await asyncio.gather(
            http.post(f"/v1/keys/{grace.actor.key_id}/revoke", headers=world.admin.headers),
            http.post(link),
            http.post("/v1/me/keys", json={"name": "late"}, headers=grace.headers),
        )
        http.cookies.clear()
        assert answers[0].status_code == 200
        assert answers[1].status_code in (303, 401)
        assert answers[2].status_code in (201, 401)
    assert await admin.fetchval("select count(*) from browser_session") == 0
    alive = (
        "select count(*) from api_key k join user_account u on u.id = k.user_account_id where u.display_name = 'Grace'"
    )
    assert await admin.fetchval(f"{alive} and k.revoked_at is null") == 0
