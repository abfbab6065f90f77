"""Credentials that somebody wrote into the database: worth nothing, answered like unknown ones, and reported."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
import pytest_asyncio
from structlog.testing import capture_logs

from cortex_plane.kernel.ids import new_id
from cortex_plane.kernel.meters import Meters, metered
from cortex_plane.tenancy.model.access import Grantable, SecretKind
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import links
from cortex_plane.tenancy.verbs.access import new_secret
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, shown, waiting
from tests.fixtures.credentials import by_token, token_for
from tests.fixtures.people import Person, World
from tests.fixtures.visitors import Visitor
from tests.storage.tenants import inside
from tests.tenancy.test_enrolments import added, code_for


@pytest_asyncio.fixture
async def app(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """The plane's own login, in the hands of somebody else."""
    connection = await asyncpg.connect(urls.app)
    yield connection
    await connection.close()


class Counted(Meters):
    def __init__(self) -> None:
        self.kinds: list[str] = []

    def forged(self, kind: str) -> None:
        self.kinds.append(str(kind))


async def refusals(world: World, http: httpx.AsyncClient) -> list[tuple[str, str]]:
    """What the trail says of rows that were refused: kind and id."""
    trail = await http.get("/v1/audit", params={"limit": 200}, headers=world.admin.headers)
    entries = [entry for entry in trail.json()["items"] if entry["action"] == "credential_refused"]
    return [(entry["body"]["data"]["kind"], entry["body"]["data"]["id"]) for entry in entries]


async def me(http: httpx.AsyncClient, secret: str, **headers: str) -> tuple[int, str]:
    answer = await http.get("/v1/me", headers={"Authorization": f"Bearer {secret}", **headers})
    return answer.status_code, answer.json().get("code", "")


UNKNOWN = (401, "key_unknown")


@pytest.mark.proves("D.610")
async def test_a_key_row_inserted_with_the_login_of_the_plane_is_worth_nothing(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection
) -> None:
    secret = new_secret(SecretKind.KEY)
    async with inside(app, world.org_id):
        await app.execute(
            "insert into api_key (org_id, id, name, kind, user_account_id, platform, secret_hash, last_characters)"
            " values ($1, $2, 'mine', 'person', $3, true, $4, 'abcd')",
            world.org_id, new_id(), world.admin.member_id, hashlib.sha256(secret.encode()).digest(),
        )  # fmt: skip
    assert await me(http, secret) == UNKNOWN


CHANGES = {
    "another's": "user_account_id = (select id from user_account where display_name = 'Ada')",
    "longer": "expires_at = expires_at + interval '1 year'",
    "for ever": "expires_at = null",
    "of the platform": "platform = true",
    "without a MAC": "mac = null",
}


@pytest.mark.proves("D.610")
@pytest.mark.parametrize("change", list(CHANGES))
async def test_a_persons_key_that_was_changed_is_worth_nothing_and_is_reported(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, change: str
) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    draft = {"name": "brief", "expires_in_days": 1}
    made = (await http.post("/v1/me/keys", json=draft, headers=grace.headers)).json()
    assert await me(http, made["secret"]) == (200, "")
    await admin.execute(f"update api_key set {CHANGES[change]} where id = $1", UUID(made["key"]["id"]))
    counted = Counted()
    with metered(counted), capture_logs() as logs:
        for _ in range(3):
            assert await me(http, made["secret"]) == UNKNOWN
    assert counted.kinds == ["key"] * 3
    assert [line["id"] for line in logs if line["log_level"] == "error"] == [made["key"]["id"]] * 3
    assert await refusals(world, http) == [("key", made["key"]["id"])], "once, however often it is tried"


@pytest.mark.proves("D.610")
@pytest.mark.parametrize("change", ["roles = '{admin}'", "permissions = '{policy.write}'"])
async def test_a_service_key_that_was_given_more_is_worth_nothing(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection, change: str
) -> None:
    program = await world.service_with(Role.MEMBER, permissions=[Grantable.AGENT_WRITE])
    await admin.execute(f"update api_key set {change} where id = $1", program.actor.key_id)
    assert await me(http, program.secret) == UNKNOWN
    assert await refusals(world, http) == [("key", str(program.actor.key_id))]


@pytest.mark.proves("D.610")
async def test_a_lookup_that_was_put_into_another_row_opens_nothing(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    """Whoever holds a key knows which row is theirs, and could write its lookup into an admin's."""
    grace = await world.person(Role.APPROVER, name="Grace")
    lookup = await admin.fetchval("select secret_hash from api_key where id = $1", grace.actor.key_id)
    for id, value in ((grace.actor.key_id, bytes(32)), (world.admin.actor.key_id, lookup)):
        await admin.execute("update api_key set secret_hash = $2 where id = $1", id, value)
    assert await me(http, grace.secret) == UNKNOWN
    reported = await admin.fetchval("select count(*) from audit_entry where action = 'credential_refused'")
    assert reported == 1


async def repoint(app: asyncpg.Connection, world: World, table: str, **changes: Any) -> None:
    """Take the one row of a table out and put it in again, changed: the plane's login may do both."""
    async with inside(app, world.org_id):
        row = dict(await app.fetchrow(f"delete from {table} returning *")) | changes
        places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
        await app.execute(f"insert into {table} ({', '.join(row)}) values ({places})", *row.values())


@pytest.mark.proves("D.610")
async def test_a_browser_session_of_somebody_else_opens_no_page(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection
) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    visitor = await Visitor.log_in(http, world, grace)
    assert (await visitor.get("/")).status_code == 200
    await repoint(app, world, "browser_session", user_account_id=world.admin.member_id)
    assert (await visitor.get("/")).status_code == 401
    ((kind, _),) = await refusals(world, http)
    assert kind == "browser_session"


@pytest.mark.proves("D.610")
async def test_a_login_link_of_somebody_else_logs_nobody_in(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection
) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    path = (await http.post("/v1/me/login-links", headers=grace.headers)).json()["url_path"]
    await repoint(app, world, "login_link", user_account_id=world.admin.member_id)
    unknown = await http.get("/login/cortex_login_" + "x" * 43)
    page = await http.get(path)
    assert (page.status_code, "Ada" in page.text) == (unknown.status_code, False)
    assert (await http.post(path)).status_code == 401
    ((kind, _),) = await refusals(world, http)
    assert kind == "login_link"


@pytest.mark.proves("D.610")
@pytest.mark.parametrize("change", ["user_account_id", "issuer_id"])
async def test_an_enrolment_code_that_was_changed_enrols_nobody(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection, change: str
) -> None:
    code = await code_for(http, world, await added(world))
    await repoint(app, world, "enrolment_code", **{change: world.admin.member_id if "user" in change else new_id()})
    page = await http.get(f"/enrol/{code}")
    assert "Ada" not in page.text
    answer = await http.post("/v1/enrolments", json={"code": code})
    assert (answer.status_code, answer.json()["code"]) == (401, "enrolment_code_invalid")
    ((kind, _),) = await refusals(world, http)
    assert kind == "enrolment_code"


@pytest.mark.proves("D.610")
@pytest.mark.parametrize("change", ["user_account_id", "version", "expires_at"])
async def test_an_approval_token_that_was_changed_decides_nothing(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection, change: str
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    pat = await strict.person(Role.MEMBER)
    token = await token_for(strict, approval.id, pat.actor)
    later = approval.requested_at.replace(year=approval.requested_at.year + 1)
    values = {"user_account_id": strict.admin.member_id, "version": 7, "expires_at": later}
    await repoint(app, strict, "approval_token", **{change: values[change]})
    answer = await by_token(http, token)
    assert (answer.status_code, answer.json()["code"]) == (401, "token_unknown")
    assert (await shown(strict, approval.id)).status == "pending"
    ((kind, _),) = await refusals(strict, http)
    assert kind == "approval_token"


@pytest.mark.proves("D.610")
async def test_a_code_for_a_channel_that_was_changed_links_nobody(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection
) -> None:
    grace: Person = await world.person(Role.APPROVER, name="Grace")
    code = (await links.issue_link_code(world.db, grace.actor)).code
    await repoint(app, world, "identity_code", user_account_id=world.admin.member_id)
    answer = await http.post(
        f"/v1/connections/{world.connection.id}/link",
        json={"code": code, "external_user_id": "4711"}, headers=world.service.headers,
    )  # fmt: skip
    assert (answer.status_code, answer.json()["code"]) == (422, "link_code_invalid")
    ((kind, _),) = await refusals(world, http)
    assert kind == "identity_code"
