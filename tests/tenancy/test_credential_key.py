"""The credential key: rows from before it are converted once, and a new master key logs nobody out."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import asyncpg
import httpx
import pytest

from cortex_plane.db.database import Database
from cortex_plane.db.vault import Vault
from cortex_plane.jobs.verbs.master_key import begin_rotation
from cortex_plane.kernel.errors import SetupError
from cortex_plane.kernel.ids import new_id
from cortex_plane.main.databases import open_database
from cortex_plane.main.settings import Settings
from cortex_plane.tenancy.model.access import SecretKind
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.tenancy.verbs import keys, links
from cortex_plane.tenancy.verbs.access import new_secret
from tests.conftest import Urls, _application
from tests.fixtures.approvals import Shipping, waiting
from tests.fixtures.credentials import by_token, token_for
from tests.fixtures.external_gates import governed
from tests.fixtures.people import World
from tests.fixtures.servers import MASTER_KEY
from tests.fixtures.visitors import Visitor
from tests.policies.test_forged_rules import say
from tests.storage.tenants import inside
from tests.tenancy.test_enrolments import added, code_for

NEW = Vault(b"n" * 32)


@asynccontextmanager
async def started(urls: Urls, home: Path) -> AsyncIterator[Database]:
    """A process of the plane that has just started, which the HTTP application uses from here on."""
    settings = Settings(home=home, master_key=MASTER_KEY, pool_size=5)
    state = _application().state
    async with open_database(settings, urls.app) as db:
        before, state.db = state.db, db
        try:
            yield db
        finally:
            state.db = before


def sha256(secret: str) -> bytes:
    return hashlib.sha256(secret.encode()).digest()


async def as_before(admin: asyncpg.Connection, secrets: dict[str, dict[str, str]]) -> None:
    """Every row as the release before wrote it: found by the plain hash, without a MAC."""
    for table, held in secrets.items():
        column = {"approval_token": "token_hash", "enrolment_code": "code_hash"}.get(table, "secret_hash")
        for id, secret in held.items():
            where = "id = $2::uuid" if id else "$2 = ''"
            await admin.execute(f"update {table} set {column} = $1 where {where}", sha256(secret), id)
    tables = ("api_key", "browser_session", "login_link", "enrolment_code", "approval_token", "identity_code")
    for table in (*tables, "channel_mapping", "policy_version", "atlas_version"):
        await admin.execute(f"update {table} set mac = null")
    await admin.execute("update org set policy_mac = null")
    await admin.execute("delete from credential_key")


@pytest.mark.proves("D.614")
async def test_credentials_of_the_release_before_work_after_the_first_start(
    http: httpx.AsyncClient, strict: World, urls: Urls, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    _, (approval,) = await waiting(strict, Shipping())
    grace = await strict.person(Role.APPROVER, name="Grace")
    visitor = await Visitor.log_in(http, strict, grace)
    link = (await http.post("/v1/me/login-links", headers=grace.headers)).json()["url_path"]
    code = await code_for(http, strict, await added(strict))
    token = await token_for(strict, approval.id, strict.admin.actor)
    talk = (await say(http, strict, "eve")).json()
    await governed(strict)
    await admin.execute("delete from login_link where used_at is not null")
    people = {str(each.actor.key_id): each.secret for each in (strict.admin, strict.service, grace)}
    await as_before(
        admin,
        {
            "api_key": people, "browser_session": {"": visitor.cookie}, "login_link": {"": link.rpartition("/")[2]},
            "enrolment_code": {"": code}, "approval_token": {"": token},
        },
    )  # fmt: skip
    async with started(urls, tmp_path):
        for person in (strict.admin, strict.service, grace):
            assert (await http.get("/v1/me", headers=person.headers)).status_code == 200
        assert (await visitor.get("/")).status_code == 200
        assert (await http.post(link)).status_code in (200, 303)
        assert (await http.post("/v1/enrolments", json={"code": code})).status_code == 201
        assert (await by_token(http, token)).json()["result"] == "OK"
        assert (await say(http, strict, "eve")).json()["session_id"] == talk["session_id"]
        body = {"agent": "deployer", "kind": "external"}
        assert (await http.post("/v1/sessions", json=body, headers=strict.service.headers)).status_code == 201
        found = (await http.get("/v1/audit/verification", headers=strict.admin.headers)).json()
        assert (found["faults"], found["row_faults"]) == ([], [])
        assert await admin.fetchval("select converted_at from credential_key") is not None


@pytest.mark.proves("D.614")
async def test_no_row_is_converted_after_the_first_start(
    http: httpx.AsyncClient, world: World, urls: Urls, admin: asyncpg.Connection, tmp_path: Path
) -> None:
    app = await asyncpg.connect(urls.app)
    try:
        secret, id = new_secret(SecretKind.KEY), new_id()
        async with inside(app, world.org_id):
            await app.execute(
                "insert into api_key (org_id, id, name, kind, user_account_id, secret_hash, last_characters)"
                " values ($1, $2, 'mine', 'person', $3, $4, 'abcd')",
                world.org_id, id, world.admin.member_id, sha256(secret),
            )  # fmt: skip
        mine = (world.org_id, [id], [sha256(secret)], [bytes(32)])
        for statement, values in (
            ("update credential_key set converted_at = null", ()),
            ("update credential_key set converted_at = now()", ()),
            ("select convert_credentials($1, 'api_key', $2, $3, $4)", mine),
        ):
            with pytest.raises(asyncpg.PostgresError, match="converted already"):
                await app.execute(statement, *values)
        with pytest.raises(asyncpg.InsufficientPrivilegeError):
            await app.execute("delete from credential_key")
    finally:
        await app.close()
    async with started(urls, tmp_path):
        headers = {"Authorization": f"Bearer {secret}"}
        assert (await http.get("/v1/me", headers=headers)).json()["code"] == "key_unknown"
        assert (await http.get("/v1/me", headers=world.admin.headers)).status_code == 200
    assert await admin.fetchval("select mac from api_key where id = $1", id) is None


@pytest.mark.proves("D.614")
async def test_processes_that_start_at_once_convert_each_row_once(
    http: httpx.AsyncClient, world: World, urls: Urls, admin: asyncpg.Connection
) -> None:
    people = [world.admin, world.service, *[await world.person(Role.MEMBER, name=f"P{n}") for n in range(8)]]
    await as_before(admin, {"api_key": {str(each.actor.key_id): each.secret for each in people}})
    vault = Vault(bytes.fromhex(MASTER_KEY))
    pools = await asyncio.gather(*(Database.open(urls.app, max_size=2, vault=vault) for _ in range(4)))
    try:
        await asyncio.gather(*(keys.convert_credentials(pool) for pool in pools))
        state = _application().state
        for pool in pools:
            state.db = pool
            for person in people:
                assert (await http.get("/v1/me", headers=person.headers)).status_code == 200
    finally:
        for pool in pools:
            await pool.close()


@pytest.mark.proves("D.615")
async def test_a_new_master_key_logs_nobody_out(http: httpx.AsyncClient, world: World, urls: Urls) -> None:
    grace = await world.person(Role.APPROVER, name="Grace")
    visitor = await Visitor.log_in(http, world, grace)
    code = (await links.issue_link_code(world.db, grace.actor)).code
    await begin_rotation(world.db, Vault(bytes.fromhex(MASTER_KEY)), NEW, 3)
    state = _application().state
    renewed = await Database.open(urls.app, max_size=2, vault=NEW)
    outdated = await Database.open(urls.app, max_size=2, vault=Vault(bytes.fromhex(MASTER_KEY)))
    try:
        state.db = renewed
        assert (await http.get("/v1/me", headers=grace.headers)).status_code == 200
        assert (await visitor.get("/")).status_code == 200
        linked = await http.post(
            f"/v1/connections/{world.connection.id}/link",
            json={"code": code, "external_user_id": "4711"}, headers=world.service.headers,
        )  # fmt: skip
        assert linked.status_code == 201
        with pytest.raises(SetupError, match="cannot open the key") as refused:
            await keys.convert_credentials(outdated)
        assert "CORTEX_MASTER_KEY" in refused.value.hint
    finally:
        await renewed.close()
        await outdated.close()
