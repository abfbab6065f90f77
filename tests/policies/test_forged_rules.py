"""Channels, policies and atlases that somebody put in force by hand: nobody is believed and nothing is allowed for them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any
from uuid import UUID

import asyncpg
import httpx
import pytest
import pytest_asyncio

from cortex_plane.jobs.model.jobs import Hold, JobStatus, Resumption
from cortex_plane.jobs.verbs import steering
from cortex_plane.kernel.ids import new_id
from cortex_plane.tenancy.model.orgs import Role
from cortex_plane.worker.notifier import Notifier
from tests.calls.test_http_calls import asked, opened
from tests.channels.behaviour import drain, link
from tests.channels.postbox import Postbox, connect
from tests.conftest import Urls
from tests.fixtures.approvals import Shipping, ship, shown, waiting
from tests.fixtures.external_gates import DESK, desk, governed
from tests.fixtures.people import EVERYTHING_GOES, World, apply_policies
from tests.fixtures.webhooks import System, decision
from tests.fixtures.workers import make_agent, submit, turn, until, working
from tests.storage.tenants import inside
from tests.tenancy.test_forged_credentials import refusals

NOTHING_GOES = 'policies: [{name: nothing-goes, target: "*", effect: deny}]'
MAPPING = (
    "insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at,"
    " proven_at) values ($1, $2, $3, $4, $5, $6, plane_now(), plane_now())"
)


@pytest_asyncio.fixture
async def app(urls: Urls) -> AsyncIterator[asyncpg.Connection]:
    """The plane's own login, in the hands of somebody else."""
    connection = await asyncpg.connect(urls.app)
    yield connection
    await connection.close()


async def map_by_hand(app: asyncpg.Connection, world: World, connection: UUID, kind: str, name: str) -> UUID:
    """This name becomes the admin's."""
    id = new_id()
    async with inside(app, world.org_id):
        await app.execute(MAPPING, world.org_id, id, connection, world.admin.member_id, kind, name)
    return id


# Channels -------------------------------------------------------------------------------------------------------------


@pytest.mark.proves("D.611")
async def test_a_name_behind_a_webhook_that_was_mapped_by_hand_decides_nothing(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection
) -> None:
    system = await System.connected(strict)
    _, (approval,) = await waiting(strict, Shipping())
    mapping = await map_by_hand(app, strict, system.id, "webhook", "eve@corp")
    refused = await system.send(http, decision(approval, "eve@corp"))
    assert (refused.status_code, refused.json()["code"]) == (403, "sender_unknown")
    assert (await shown(strict, approval.id)).status == "pending"
    assert await refusals(strict, http) == [("mapping", str(mapping))]


async def say(http: httpx.AsyncClient, world: World, sender: str) -> httpx.Response:
    return await http.post(
        f"/v1/connections/{world.connection.id}/messages",
        json={"external_user_id": sender, "agent": "deployer", "text": "Hello"}, headers=world.service.headers,
    )  # fmt: skip


@pytest.mark.proves("D.611")
async def test_a_sender_that_was_mapped_by_hand_does_not_speak_as_a_member(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection
) -> None:
    mapping = await map_by_hand(app, world, world.connection.id, "web", "eve")
    refused = await say(http, world, "eve")
    assert (refused.status_code, refused.json()["code"]) == (403, "sender_unknown")
    assert await refusals(world, http) == [("mapping", str(mapping))]
    assert (await say(http, world, "bob")).status_code == 201, "others go on"


@pytest.mark.proves("D.611")
async def test_a_sender_that_is_given_to_somebody_else_is_checked_again(
    http: httpx.AsyncClient, world: World, admin: asyncpg.Connection
) -> None:
    first = await say(http, world, "eve")
    assert (await say(http, world, "eve")).json()["session_id"] == first.json()["session_id"]
    await admin.execute("update channel_mapping set user_account_id = $1", world.admin.member_id)
    assert (await say(http, world, "eve")).json()["code"] == "sender_unknown"


@pytest.mark.proves("D.611")
async def test_no_card_goes_to_an_address_that_was_mapped_by_hand(
    http: httpx.AsyncClient, strict: World, app: asyncpg.Connection, admin: asyncpg.Connection
) -> None:
    mail = await connect(strict)
    await link(admin, strict, mail, strict.admin, "ada@example.com")
    mapping = await map_by_hand(app, strict, mail, "email", "eve@example.com")
    await waiting(strict, Shipping())
    box = Postbox()
    await drain(Notifier(strict.db, [box], "https://plane.example"))
    assert {each.target.address for each in box.received} == {"ada@example.com"}
    assert await refusals(strict, http) == [("mapping", str(mapping))]


@pytest.mark.proves("D.611")
async def test_no_card_goes_elsewhere_than_to_the_address_of_its_mapping(
    strict: World, app: asyncpg.Connection, admin: asyncpg.Connection
) -> None:
    await link(admin, strict, await connect(strict), strict.admin, "ada@example.com")
    await waiting(strict, Shipping())
    await admin.execute("update notification set address = 'eve@example.com'")
    box = Postbox()
    await drain(Notifier(strict.db, [box], "https://plane.example"))
    assert box.received == []


# Policies -------------------------------------------------------------------------------------------------------------


async def put_in_force(app: asyncpg.Connection, world: World, how: str) -> None:
    """As the plane's login, past `cortex policy apply`: version 2 denies everything."""
    async with inside(app, world.org_id):
        match how:
            case "an old version":
                await app.execute("update org set policy_version = 1")
            case "none":
                await app.execute("update org set policy_version = 0")
            case "a version of their own":
                await app.execute(
                    "insert into policy_version (org_id, version, source, digest, rows, applied_by)"
                    " select org_id, 3, source, digest, rows, applied_by from policy_version where version = 1"
                )
                await _copy_rows(app, 1, 3, 0)
                await app.execute("update org set policy_version = 3")
            case "a row more":
                await app.execute(
                    "insert into policy (org_id, version, position, level, name, action_type, target, effect, final)"
                    " values ($1, 2, 99, 'org', 'mine', 'tool_call', '*', 'allow', true)",
                    world.org_id,
                )


async def _copy_rows(app: asyncpg.Connection, version: int, to: int, position: int) -> None:
    row = dict(await app.fetchrow("select * from policy where version = $1", version))
    row |= {"version": to, "position": position}
    places = ", ".join(f"${n}" for n in range(1, len(row) + 1))
    await app.execute(f"insert into policy ({', '.join(row)}) values ({places})", *row.values())


WAYS = ["an old version", "none", "a version of their own", "a row more"]


@pytest.mark.proves("D.612")
@pytest.mark.parametrize("how", WAYS)
async def test_policies_that_were_put_in_force_by_hand_allow_nothing(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection, how: str
) -> None:
    session = await opened(http, world.service)
    assert (await asked(http, world.service, session))["verdict"] == "allow"
    await apply_policies(world.db, world.admin.actor, NOTHING_GOES)
    if how != "a row more":  # this process knows both versions, and must not go on with the one that it knows
        assert (await asked(http, world.service, session, key="2"))["verdict"] == "deny"
    await put_in_force(app, world, how)
    refused = await asked(http, world.service, session, key="3", status=409)
    assert (refused["code"], "cortex policy apply" in refused["hint"]) == ("policy_corrupt", True)
    ((kind, _),) = await refusals(world, http)
    assert kind == ("policy_version" if how == "a row more" else "policy_in_force")
    # Applying a file repairs it, also the same file again.
    await apply_policies(world.db, world.admin.actor, NOTHING_GOES)
    assert (await asked(http, world.service, session, key="4"))["verdict"] == "deny"
    await apply_policies(world.db, world.admin.actor, EVERYTHING_GOES)
    assert (await asked(http, world.service, session, key="5"))["verdict"] == "allow"


@pytest.mark.proves("D.612")
async def test_a_job_is_held_while_the_policies_are_not_the_planes(world: World, app: asyncpg.Connection) -> None:
    shipping = Shipping()
    agent = await make_agent(world, [turn(ship(), text="I ship."), turn(text="Done.")], slug="shipper")
    async with inside(app, world.org_id):
        await app.execute("update org set policy_version = 0")
    id = await submit(world, agent)
    async with working(world.db, shipping.app):
        job = await until(world, id, JobStatus.PAUSED)
        assert (job.holds, shipping.shipped) == ([Hold.POLICIES_UNREADABLE], [])
        assert "not put in force by the plane" in (job.error_message or "")
        await apply_policies(world.db, world.admin.actor, EVERYTHING_GOES)
        await steering.resume(world.db, world.admin.actor, id, Resumption())
        await until(world, id, JobStatus.COMPLETED)
    assert len(shipping.shipped) == 1


# Atlases --------------------------------------------------------------------------------------------------------------


def changed(row: asyncpg.Record, **changes: Any) -> tuple[str, list[Any]]:
    values = dict(row) | changes
    places = ", ".join(f"${n}" for n in range(1, len(values) + 1))
    return f"insert into atlas_version ({', '.join(values)}) values ({places})", list(values.values())


@pytest.mark.proves("D.613")
@pytest.mark.parametrize("how", ["published", "retired"])
async def test_an_atlas_that_was_published_or_retired_by_hand_governs_nothing(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection, how: str
) -> None:
    await governed(world)
    if how == "retired":
        await governed(world, desk(version="2.0.0"))
    async with inside(app, world.org_id):
        if how == "published":
            row = await app.fetchrow("select * from atlas_version where atlas_id = $1", DESK)
            assert row is not None
            statement, values = changed(row, version="9.9.9", number=9)
            await app.execute(statement, *values)
        else:
            await app.execute("update atlas_version set retired_at = plane_now(), retired_by = 'eve' where number = 2")
    body = {"agent": "deployer", "kind": "external"}
    refused = await http.post("/v1/sessions", json=body, headers=world.service.headers)
    assert (refused.status_code, refused.json()["code"]) == (409, "atlas_corrupt")
    ((kind, _),) = await refusals(world, http)
    assert kind == "atlas_version"


# The trail ------------------------------------------------------------------------------------------------------------


async def verified(http: httpx.AsyncClient, world: World) -> list[tuple[str, str]]:
    answer = await http.get("/v1/audit/verification", headers=world.admin.headers)
    assert answer.status_code == 200, answer.text
    return [(fault["subject"].split()[0], fault["reason"].split(":")[0]) for fault in answer.json()["row_faults"]]


FALSE, BACK = "its MAC is false", "it ended on the trail, and is there again"


@pytest.mark.proves("D.616")
async def test_verifying_names_rows_that_were_written_by_hand_and_rows_that_are_back(
    http: httpx.AsyncClient, world: World, app: asyncpg.Connection
) -> None:
    grace = await world.person(Role.MEMBER, name="Grace")
    assert await verified(http, world) == []
    revoked = await http.post(f"/v1/keys/{grace.actor.key_id}/revoke", headers=world.admin.headers)
    assert revoked.status_code == 200
    await apply_policies(world.db, world.admin.actor, NOTHING_GOES)
    async with inside(app, world.org_id):
        old = await app.fetchrow("select policy_version, policy_mac from org")
    await apply_policies(world.db, world.admin.actor, EVERYTHING_GOES)
    assert await verified(http, world) == []
    async with inside(app, world.org_id):
        await app.execute("update api_key set revoked_at = null where id = $1", grace.actor.key_id)
        await app.execute("update org set policy_version = $1, policy_mac = $2", *old)
    await map_by_hand(app, world, world.connection.id, "web", "eve")
    assert await verified(http, world) == [
        ("policy", "it is in force, and the trail applied version 3 last"), ("key", BACK), ("mapping", FALSE),
    ]  # fmt: skip
