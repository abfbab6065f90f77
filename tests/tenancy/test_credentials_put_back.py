"""Credentials that ended and that somebody puts back into the database, whole: verifying the trail names each of them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import links
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.credentials import token_for
from tests.fixtures.people import Person, World
from tests.fixtures.visitors import Visitor
from tests.storage.tenants import inside
from tests.tenancy.test_enrolments import added, code_for, enrolled

pytestmark = pytest.mark.proves("D.616")

TABLES = {
    "api_key": "key",
    "browser_session": "browser_session",
    "login_link": "login_link",
    "enrolment_code": "enrolment_code",
    "identity_code": "identity_code",
    "approval_token": "approval_token",
}
BACK = "it ended on the trail, and is there again"


@pytest_asyncio.fixture
async def app(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """The plane's own login, in the hands of somebody else."""
    connection = await asyncpg.connect(urls.app)
    yield connection
    await connection.close()


Rows = dict[str, list[asyncpg.Record]]


async def kept(app: asyncpg.Connection, world: World, member: str) -> Rows:
    """Whatever logs this member in, or decides for them."""
    async with inside(app, world.org_id):
        found = {
            table: await app.fetch(f"select * from {table} where user_account_id = $1::uuid", member)
            for table in TABLES
        }
    live = {
        table: [row for row in rows if row.get("used_at") is None and row.get("revoked_at") is None]
        for table, rows in found.items()
    }
    return {table: rows for table, rows in live.items() if rows}


async def put_back(app: asyncpg.Connection, world: World, rows: Rows) -> list[tuple[str, str]]:
    """Returns what verifying must say of them."""
    async with inside(app, world.org_id):
        for table, row in [(table, row) for table, held in rows.items() for row in held]:
            if table in ("api_key", "approval_token"):
                column = "revoked_at" if table == "api_key" else "used_at"
                await app.execute(f"update {table} set {column} = null where id = $1", row["id"])
                continue
            places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
            await app.execute(f"insert into {table} ({', '.join(row.keys())}) values ({places})", *row.values())
    return sorted((f"{TABLES[table]} {row['id']}", BACK) for table, held in rows.items() for row in held)


async def named(http: httpx.AsyncClient, world: World) -> list[tuple[str, str]]:
    found = (await http.get("/v1/audit/verification", headers=world.admin.headers)).json()
    assert found["faults"] == []
    return sorted((fault["subject"], fault["reason"]) for fault in found["row_faults"])


async def with_everything(http: httpx.AsyncClient, world: World) -> Person:
    """Somebody with a credential of each kind."""
    maria = await enrolled(http, world, await added(world, "Maria", Role.ADMIN))
    _, (approval,) = await waiting(world, Shipping())
    await token_for(world, approval.id, maria.actor)
    await Visitor.log_in(http, world, maria)
    await http.post("/v1/me/login-links", headers=maria.headers)
    await links.issue_link_code(world.db, maria.actor)
    await code_for(http, world, str(maria.member_id))
    return maria


async def test_those_of_a_member_who_was_deactivated(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection
) -> None:
    maria = await with_everything(http, strict)
    before = await kept(app, strict, str(maria.member_id))
    assert before.keys() == TABLES.keys()
    for active in (False, True):
        address = f"/v1/members/{maria.member_id}"
        assert (await http.patch(address, json={"active": active}, headers=strict.admin.headers)).is_success
    assert await kept(app, strict, str(maria.member_id)) == {}
    assert await named(http, strict) == []
    expected = await put_back(app, strict, before)
    assert (await http.get("/v1/me", headers=maria.headers)).status_code == 200, "it works again"
    assert await named(http, strict) == expected


async def test_sessions_and_links_that_were_ended_all_at_once(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection
) -> None:
    grace = await strict.person(Role.APPROVER, name="Grace")
    visitor = await Visitor.log_in(http, strict, grace)
    await http.post("/v1/me/login-links", headers=grace.headers)
    before = await kept(app, strict, str(grace.member_id))
    before.pop("api_key")
    assert (await http.delete("/v1/me/browser-sessions", headers=grace.headers)).json() == {"ended": 1}
    assert await named(http, strict) == []
    expected = await put_back(app, strict, before)
    assert (await visitor.get("/")).status_code == 200, "it works again"
    assert await named(http, strict) == expected


async def test_those_from_before_somebody_enrolled_again(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection
) -> None:
    maria = await with_everything(http, strict)
    before = await kept(app, strict, str(maria.member_id))
    before.pop("approval_token")
    await enrolled(http, strict, str(maria.member_id))
    assert await named(http, strict) == []
    expected = await put_back(app, strict, before)
    assert await named(http, strict) == expected


async def test_a_code_that_was_made_with_a_revoked_key(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection
) -> None:
    boss = await strict.person(Role.ADMIN, name="Boss")
    member = await added(strict)
    await code_for(http, strict, member, boss)
    before = await kept(app, strict, member)
    revoked = await http.post(f"/v1/keys/{boss.actor.key_id}/revoke", headers=strict.admin.headers)
    assert revoked.status_code == 200
    assert await named(http, strict) == []
    expected = await put_back(app, strict, before)
    assert await named(http, strict) == expected
