"""Who somebody is: one account, whatever channel they write from."""

from __future__ import annotations

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


@pytest.mark.proves("S2.7")
async def test_both_identities_of_a_person_reach_the_same_session(
    db: Database, world: World, admin: asyncpg.Connection
) -> None:
    over_the_web = await world.say("Start here", "maria")
    telegram = await connections.create_connection(
        db, world.admin.actor, ConnectionDraft(channel_type="telegram", name="bot")
    )
    await admin.execute(
        "insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id,"
        " verified_at) values ($1, $2, $3, $4, 'telegram', '4711', now())",
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
