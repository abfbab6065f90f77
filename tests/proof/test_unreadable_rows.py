"""Rows that nobody can read, written by hand: verifying the trail names them, and goes on with all others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.kernel.ids import new_id
from tests.calls.test_http_calls import asked, opened
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping
from tests.fixtures.people import EVERYTHING_GOES, World, apply_policies
from tests.fixtures.workers import call, ended, make_agent, submit, turn, working
from tests.storage.tenants import inside

UNREADABLE = ["infinity", "20000-01-01"]
"""Times that PostgreSQL has and Python has not."""


@pytest_asyncio.fixture
async def app(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """The plane's own login, in the hands of somebody else."""
    connection = await asyncpg.connect(urls.app)
    yield connection
    await connection.close()


async def verified(http: httpx.AsyncClient, world: World) -> dict[str, Any]:
    answer = await http.get("/v1/audit/verification", headers=world.admin.headers)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.proves("D.617")
@pytest.mark.parametrize(
    "body",
    [
        b"not JSON",
        b"[]",
        b'{"action":"key_revoked","data":[]}',
        b'{"action":"key_revoked","data":{"key_id":5,"also":[[]]}}',
    ],
)
@pytest.mark.parametrize("action", ["key_revoked", "atlas_retired", "policy_applied"])
async def test_an_entry_that_was_appended_by_hand(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection, action: str, body: bytes
) -> None:
    body = body.replace(b"key_revoked", action.encode())
    async with inside(app, world.org_id):
        await app.execute("select org_append($1, $2, $3)", world.org_id, [action], [body])
    found = await verified(http, world)
    is_of_the_plane = body.startswith(b'{"action"')
    assert [fault["reason"] for fault in found["faults"]] == (
        [] if is_of_the_plane else ["its body is not one that the plane writes"]
    )


@pytest.mark.proves("D.617")
@pytest.mark.parametrize("time", UNREADABLE)
async def test_the_time_of_an_entry(http: httpx.AsyncClient, world: World, app: asyncpg.Connection, time: str) -> None:
    async with inside(app, world.org_id):
        seq = await app.fetchval("select audit_seq + 1 from org_head where org_id = $1", world.org_id)
        await app.execute(
            "insert into audit_entry (org_id, seq, format, action, body, body_hash, hash, created_at)"
            f" values ($1, $2, 2, 'key_revoked', 'x', sha256('x'), sha256('x'), '{time}')",
            world.org_id, seq,
        )  # fmt: skip
    found = await verified(http, world)
    assert [fault["seq"] for fault in found["faults"]] == [seq]
    listed = await http.get("/v1/audit", headers=world.admin.headers)
    assert listed.status_code == 200, listed.text


@pytest.mark.proves("D.617")
@pytest.mark.parametrize("time", UNREADABLE)
async def test_the_end_of_a_key(http: httpx.AsyncClient, world: World, app: asyncpg.Connection, time: str) -> None:
    ids = sorted(str(new_id()) for _ in range(2))
    async with inside(app, world.org_id):
        for id, end in zip(ids, (f"'{time}'", "null"), strict=True):
            await app.execute(
                "insert into api_key (org_id, id, name, kind, user_account_id, secret_hash, last_characters, expires_at, mac)"
                f" values ($1, $2, 'mine', 'person', $3, sha256($2::uuid::text::bytea), 'abcd', {end}, sha256('x'))",
                world.org_id, id, world.admin.member_id,
            )  # fmt: skip
    found = await verified(http, world)
    assert [fault["subject"] for fault in found["row_faults"]] == [f"key {id}" for id in ids]


@pytest.mark.proves("D.617")
@pytest.mark.parametrize("approvers", ["5", '{"members": [1e999]}'])
async def test_a_row_of_policies(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection, approvers: str
) -> None:
    async with inside(app, world.org_id):
        await app.execute(
            "insert into policy (org_id, version, position, level, name, action_type, target, effect, final, approvers)"
            f" values ($1, 1, 99, 'org', 'mine', 'tool_call', '*', 'requires_approval', true, '{approvers}')",
            world.org_id,
        )
    found = await verified(http, world)
    assert "policy version 1: its rows are not those that the trail applied" in [
        f"{fault['subject']}: {fault['reason']}" for fault in found["row_faults"]
    ]
    session = await opened(http, world.service)
    assert (await asked(http, world.service, session, status=409))["code"] == "policy_corrupt"
    await apply_policies(world.db, world.admin.actor, EVERYTHING_GOES)
    assert (await asked(http, world.service, session))["verdict"] == "allow"


@pytest.mark.proves("D.617")
async def test_the_result_of_a_call(http: httpx.AsyncClient, world: World, admin: asyncpg.Connection) -> None:
    agent = await make_agent(world, [turn(call("look"), text="I look.")])
    job = await submit(world, agent)
    async with working(world.db, Shipping().app):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    await admin.execute("update tool_call set result = '1e999'")
    (fault,) = (await verified(http, world))["row_faults"]
    assert fault["reason"].startswith("its result is not the one of entry")
