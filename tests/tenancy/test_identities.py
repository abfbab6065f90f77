"""Who somebody is: one account, whatever channel they write from."""

from __future__ import annotations

from uuid import RFC_4122, UUID

import asyncpg
import pytest

from cortex_plane.db.database import Database
from cortex_plane.jobs.model.jobs import JobDraft
from cortex_plane.jobs.verbs import jobs
from cortex_plane.kernel.ids import new_id
from cortex_plane.sessions.model.sessions import InboundMessage
from cortex_plane.sessions.verbs import sessions
from cortex_plane.tenancy.model.identities import ConnectionDraft
from cortex_plane.tenancy.verbs import connections
from tests.fixtures.macs import sign_mappings
from tests.fixtures.people import World
from tests.storage.tenants import populate


@pytest.mark.proves("S2.7")
async def test_both_identities_of_a_person_reach_the_same_session(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    over_the_web = await world.say("Start here", "maria")
    telegram = await connections.create_connection(
        db, world.admin.actor, ConnectionDraft(channel_type="x-telegram", name="bot")
    )
    await admin.execute(
        "insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id,"
        " verified_at) values ($1, $2, $3, $4, 'x-telegram', '4711', now())",
        world.org_id,
        new_id(),
        telegram.id,
        over_the_web.user_account_id,
    )
    await sign_mappings(db, world.org_id)
    inbound = InboundMessage(external_user_id="4711", agent="deployer", text="Go on there")
    over_telegram = await sessions.ingest_message(db, world.service.actor, telegram.id, inbound)
    assert over_telegram.session_id == over_the_web.session_id
    assert over_telegram.job_id == over_the_web.job_id
    assert over_telegram.message_seq == 2


@pytest.mark.proves("S0.5")
async def test_ids_are_of_version_7(db: Database, world: World) -> None:
    delivery = await world.say()
    job = await jobs.submit(db, world.admin.actor, JobDraft(agent="deployer"))
    ids = [world.org_id, world.agent.id, world.connection.id, delivery.session_id, delivery.job_id, job.id]
    assert {id.version for id in ids} == {7}


@pytest.mark.proves("S0.5")
async def test_no_row_of_a_populated_plane_has_an_id_of_another_version(
    world: World, admin: asyncpg.Connection
) -> None:
    """Whether a process made it or the database: every column that is called `id`."""
    await populate(world)
    tables = await admin.fetch(
        """select table_name as name from information_schema.columns
        where table_schema = 'public' and column_name = 'id' and data_type = 'uuid' order by 1"""
    )
    versions: dict[str, set[int]] = {}
    for table in tables:
        rows = await admin.fetch(f'select id from "{table["name"]}" where id <> $1', UUID(int=0))
        if rows:
            versions[table["name"]] = {row["id"].version for row in rows}
    assert len(versions) > 15, versions
    assert {name for name, found in versions.items() if found != {7}} == set()


async def test_an_id_that_the_database_makes_is_of_version_7_and_of_now(
    db: Database, admin: asyncpg.Connection
) -> None:
    row = await admin.fetchrow(
        "select array_agg(new_id()) as ids, extract(epoch from plane_now()) * 1000 as at from generate_series(1, 1000)"
    )
    assert {id.version for id in row["ids"]} == {7}
    assert {id.variant for id in row["ids"]} == {RFC_4122}
    assert len(set(row["ids"])) == 1000
    assert all(abs((id.int >> 80) - row["at"]) < 1000 for id in row["ids"])
