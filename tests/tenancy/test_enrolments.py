"""Nobody makes another person's credential: an admin hands over a code, and the person redeems it."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import asyncpg
import httpx
import pytest

from cortex_plane.kernel.ids import new_id
from cortex_plane.proof.verbs import audit
from cortex_plane.tenancy.model.access import Grantable, secret_digest
from cortex_plane.tenancy.model.identities import Connection, ConnectionDraft, LinkDraft, Mapping
from cortex_plane.tenancy.model.orgs import MemberDraft, Role
from cortex_plane.tenancy.verbs import connections, frame, links, orgs
from tests.fixtures.clock import Clock
from tests.fixtures.people import Person, World, with_key
from tests.fixtures.servers import CREDENTIAL_KEY
from tests.fixtures.visitors import Visitor

START = datetime(2026, 1, 5, 9, 0, tzinfo=UTC)


async def added(world: World, name: str = "Maria", *roles: Role) -> str:
    draft = MemberDraft(display_name=name, roles=list(roles) or [Role.APPROVER])
    return str((await orgs.create_member(world.db, world.admin.actor, draft)).id)


async def code_for(http: httpx.AsyncClient, world: World, member: str, by: Person | None = None) -> str:
    path = f"/v1/members/{member}/enrolment-codes"
    answer = await http.post(path, headers=(by or world.admin).headers)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["code"])


async def enrolled(http: httpx.AsyncClient, world: World, member: str, by: Person | None = None) -> Person:
    answer = await http.post("/v1/enrolments", json={"code": await code_for(http, world, member, by)})
    assert answer.status_code == 201, answer.text
    secret = answer.json()["secret"]
    return Person(await frame.authenticate_key(world.db, secret), secret)


async def prove_channel(world: World, person: Person, sender: str = "4711") -> Mapping:
    """They read a code here, and type it in a chat of a connection that an admin set up who enrolled nobody."""
    setter = await world.person(Role.ADMIN, name="Sam")
    draft = ConnectionDraft(channel_type=world.connection.channel_type, name=f"chat {new_id()}")
    connection = await connections.create_connection(world.db, setter.actor, draft)
    return await type_code(world, person, connection, sender)


async def type_code(world: World, person: Person, connection: Connection, sender: str = "4711") -> Mapping:
    code = await links.issue_link_code(world.db, person.actor)
    draft = LinkDraft(code=code.code, external_user_id=sender)
    return await links.redeem_link_code(world.db, world.service.actor, connection.id, draft)


@pytest.mark.proves("D.463")
async def test_nobody_makes_a_key_or_a_login_link_for_somebody_else(
    http: httpx.AsyncClient, world: World, other: World
) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    program = await world.service_with(Role.ADMIN, permissions=list(Grantable))
    elsewhere = {**other.admin.headers, "Cortex-Org": "acme"}
    draft = {"name": "not hers", "member_id": str(grace.member_id)}
    for headers in (world.admin.headers, program.headers, elsewhere):
        refused = await http.post("/v1/keys", json=draft, headers=headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "not_your_key")
        assert (await http.post(f"/v1/members/{grace.member_id}/login-links", headers=headers)).status_code == 404
    for path in ("/v1/me/keys", "/v1/me/login-links"):
        own = await http.post(path, json={"name": "mine"} if "keys" in path else None, headers=program.headers)
        assert own.status_code == 403
    enrols = await http.post(f"/v1/members/{grace.member_id}/enrolment-codes", headers=program.headers)
    assert (enrols.status_code, enrols.json()["detail"]) == (403, "No program may do this.")
    mine = await http.post("/v1/keys", json=draft, headers=grace.headers)
    assert mine.status_code == 403, "she is no admin: `POST /v1/me/keys` is hers"
    assert (await http.post("/v1/me/keys", json={"name": "hers"}, headers=grace.headers)).status_code == 201
    ada = {"name": "ada's", "member_id": str(world.admin.member_id)}
    assert (await http.post("/v1/keys", json=ada, headers=world.admin.headers)).status_code == 201


@pytest.mark.proves("D.463")
async def test_a_code_is_redeemed_once_on_a_page(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    member = await added(world)
    code = await code_for(http, world, member)
    kept = await admin.fetchval("select code_hash from enrolment_code")
    assert kept == CREDENTIAL_KEY.lookup(secret_digest(code))
    for _ in range(2):
        page = await http.get(f"/enrol/{code}")
        assert (page.status_code, "Maria" in page.text, "Ada" in page.text) == (200, True, True)
    foreign = await http.post(f"/enrol/{code}", headers={"Sec-Fetch-Site": "cross-site"})
    assert foreign.status_code == 403
    answer = await http.post(f"/enrol/{code}")
    assert answer.status_code == 303
    maria = Visitor(http, answer.cookies["cortex_session"])
    http.cookies.clear()
    assert "Maria" in (await maria.get("/access")).text
    again = await http.post(f"/enrol/{code}")
    assert (again.status_code, "does not work" in again.text) == (401, True)
    refused = await http.post("/v1/enrolments", json={"code": code})
    assert (refused.status_code, refused.json()["code"]) == (401, "enrolment_code_invalid")
    for wrong in ("cortex_enrol_" + "a" * 43, "nonsense", "\x00"):
        said = await http.post("/v1/enrolments", json={"code": wrong})
        assert (said.status_code, said.json()["detail"]) == (401, refused.json()["detail"])
    trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 1000)
    assert [entry.action for entry in trail][-3:] == ["enrolment_code_created", "enrolled", "logged_in"]


@pytest.mark.proves("D.463")
async def test_of_many_who_redeem_a_code_at_once_one_gets_in(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    for _ in range(5):
        member = await added(world)
        code = await code_for(http, world, member)
        answers = await asyncio.gather(
            *(http.post("/v1/enrolments", json={"code": code}) for _ in range(3)),
            *(http.post(f"/enrol/{code}") for _ in range(3)),
        )
        http.cookies.clear()
        assert sorted(answer.status_code for answer in answers)[:5].count(401) in (4, 5)
        ways = "select (select count(*) from api_key where user_account_id = $1 and revoked_at is null)"
        ways += " + (select count(*) from browser_session where user_account_id = $1)"
        assert await admin.fetchval(ways, member) == 1


@pytest.mark.proves("D.463")
async def test_a_code_ends_with_time_with_its_key_and_with_its_people(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    clock = await Clock.install(admin, START)
    member, boss = await added(world), await world.person(Role.ADMIN, name="Boss")

    async def works(code: str) -> bool:
        return (await http.get(f"/enrol/{code}")).status_code == 200

    late = await code_for(http, world, member)
    await clock.advance(timedelta(hours=24))
    assert not await works(late)
    first, second = await code_for(http, world, member), await code_for(http, world, member)
    assert [await works(first), await works(second)] == [False, True], "only the newest works"
    third = await code_for(http, world, member, boss)
    await http.post(f"/v1/keys/{boss.actor.key_id}/revoke", headers=world.admin.headers)
    assert not await works(third)
    boss = await with_key(world.db, world.org_id, boss.member_id)
    fourth = await code_for(http, world, member, boss)
    await http.patch(f"/v1/members/{boss.member_id}", json={"active": False}, headers=world.admin.headers)
    assert not await works(fourth)
    fifth = await code_for(http, world, member)
    for active in (False, True):
        await http.patch(f"/v1/members/{member}", json={"active": active}, headers=world.admin.headers)
        assert not await works(fifth)


@pytest.mark.proves("D.463")
async def test_who_gets_no_code(http: httpx.AsyncClient, world: World, other: World) -> None:
    member = await added(world)
    maria = await enrolled(http, world, member)

    async def refused(id: object, by: Person) -> tuple[int, str]:
        answer = await http.post(f"/v1/members/{id}/enrolment-codes", headers=by.headers)
        return answer.status_code, answer.json()["code"]

    assert await refused(world.admin.member_id, world.admin) == (403, "enrols_self")
    assert await refused(member, maria) == (403, "forbidden")
    assert await refused(new_id(), world.admin) == (404, "member_not_found")
    assert await refused(member, other.admin) == (404, "member_not_found")
    mapping = await prove_channel(world, maria)
    assert await refused(member, world.admin) == (409, "channel_proven")
    taken = await http.delete(f"/v1/members/{member}/mappings/{mapping.id}", headers=world.admin.headers)
    assert taken.status_code == 204
    assert await code_for(http, world, member)
    await http.patch(f"/v1/members/{member}", json={"active": False}, headers=world.admin.headers)
    assert await refused(member, world.admin) == (409, "member_deactivated")


@pytest.mark.proves("D.463")
async def test_enrolling_again_ends_every_earlier_way_in(http: httpx.AsyncClient, world: World) -> None:
    member = await added(world)
    before = await enrolled(http, world, member)
    visitor = await Visitor.log_in(http, world, before)
    after = await enrolled(http, world, member)
    assert (await http.get("/v1/me", headers=before.headers)).json()["code"] == "key_revoked"
    assert (await visitor.get("/")).status_code == 401
    assert (await http.get("/v1/me", headers=after.headers)).json()["name"] == "Maria"


@pytest.mark.proves("D.463")
async def test_the_first_admin_of_an_org_is_enrolled_too(http: httpx.AsyncClient, world: World) -> None:
    made = await http.post("/v1/orgs", json={"slug": "third", "name": "Third"}, headers=world.admin.headers)
    assert (made.status_code, made.json().get("key")) == (201, None)
    redeemed = await http.post("/v1/enrolments", json={"code": made.json()["enrolment"]["code"]})
    bearer = {"Authorization": f"Bearer {redeemed.json()['secret']}"}
    me = (await http.get("/v1/me", headers=bearer)).json()
    assert (me["roles"], me["platform"]) == (["admin"], False)


@pytest.mark.proves("D.464")
async def test_a_program_changes_the_rules_only_where_it_was_granted_by_name(
    http: httpx.AsyncClient, world: World
) -> None:
    policy: dict[str, object] = {"text": 'policies: [{name: all, target: "*", effect: allow}]'}
    person = str((await world.person(Role.MEMBER, name="Mel")).member_id)
    tries: dict[str, tuple[str, str, dict[str, object]]] = {
        "policy.write": ("POST", "/v1/policies", policy),
        "connection.write": ("POST", "/v1/connections", {"channel_type": "web", "name": "mine"}),
        "agent.write": ("PATCH", "/v1/agents/deployer", {"role": "other"}),
        "team.write": ("POST", "/v1/teams", {"slug": "mine", "name": "Mine"}),
        "org.write": ("PATCH", "/v1/org", {"name": "Mine"}),
        "member.write": ("PATCH", f"/v1/members/{person}", {"clearance": 3}),
    }
    plain = await world.service_with(Role.ADMIN, Role.STEWARD)
    for permission, (method, path, body) in tries.items():
        refused = await http.request(method, path, json=body, headers=plain.headers)
        assert (refused.status_code, refused.json()["code"]) == (403, "forbidden"), permission
        assert permission in refused.json()["hint"]
    for permission, (method, path, body) in tries.items():
        granted = await world.service_with(Role.MEMBER, permissions=[Grantable(permission)])
        answer = await http.request(method, path, json=body, headers=granted.headers)
        assert answer.is_success, answer.text
        trail = await audit.list_entries(world.db, world.admin.actor, None, 0, 10_000)
        assert trail[-1].body is not None
        actor = trail[-1].body["actor"]
        assert (actor["kind"], actor["granted"]) == ("service", permission)
        others = [each for each in tries if each != permission]
        method, path, body = tries[others[0]]
        assert (await http.request(method, path, json=body, headers=granted.headers)).status_code == 403


@pytest.mark.proves("D.464")
async def test_only_a_human_admin_grants_a_program_something(http: httpx.AsyncClient, world: World) -> None:
    program = await world.service_with(Role.ADMIN, permissions=list(Grantable))
    more = {"name": "child", "roles": ["member"], "permissions": ["policy.write"]}
    refused = await http.post("/v1/keys", json=more, headers=program.headers)
    assert (refused.status_code, refused.json()["code"]) == (403, "grants_nothing")
    plain = await http.post("/v1/keys", json={"name": "child", "roles": ["member"]}, headers=program.headers)
    assert plain.status_code == 201
    made = await http.post("/v1/keys", json=more, headers=world.admin.headers)
    assert made.json()["key"]["permissions"] == ["policy.write"]
    own = {**more, "roles": None, "member_id": str(world.admin.member_id)}
    assert (await http.post("/v1/keys", json=own, headers=world.admin.headers)).status_code == 403
    for wrong in ("key.write", "approval.decide", "member.enrol", "everything"):
        body = {**more, "permissions": [wrong]}
        assert (await http.post("/v1/keys", json=body, headers=world.admin.headers)).status_code == 422
