"""Rows beside the trail: whatever somebody changed behind the plane's back contradicts what the trail says, and is named."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

import asyncpg
import pytest

from cortex_plane.approvals.model.approvals import Choice
from cortex_plane.gates.verbs import atlases
from cortex_plane.jobs.model.jobs import JobStatus
from cortex_plane.proof.verbs.audit import verify_org
from tests.fixtures.approvals import Shipping, decide, ship, waiting
from tests.fixtures.atlases import plain, publish
from tests.fixtures.people import World, apply_policies
from tests.fixtures.workers import call, ended, make_agent, submit, turn, working

pytestmark = pytest.mark.proves("D.602")


async def contradictions(world: World) -> list[str]:
    """As `cortex audit verify` prints them; the chains themselves are whole."""
    found = await verify_org(world.db, world.org_id)
    assert (found.faults, found.root_faults) == ([], [])
    return [f"{fault.subject}: {fault.reason}" for fault in found.row_faults if "its MAC is false" not in fault.reason]


_COLUMNS = """
select string_agg(quote_ident(attname), ', ') from pg_attribute
where attrelid = $1::text::regclass and attnum > 0 and not attisdropped and attgenerated = ''
"""


@asynccontextmanager
async def tampered(admin: asyncpg.Connection, table: str, statement: str) -> AsyncIterator[None]:
    """Somebody with the whole database in hand changes a table; afterwards it is as it was."""
    await admin.execute("set session_replication_role = replica")
    await admin.execute(f"create temp table kept as select * from {table}")
    try:
        await admin.execute(statement)
        yield
    finally:
        columns = await admin.fetchval(_COLUMNS, table)
        back = f"insert into {table} ({columns}) select {columns} from kept"
        await admin.execute(f"delete from {table}; {back}; drop table kept")
        await admin.execute("set session_replication_role = origin")


async def named(world: World, admin: asyncpg.Connection, cases: Sequence[tuple[str, str, list[str]]]) -> None:
    """Each change of a table is named in lines that begin so, and nothing else is."""
    assert await contradictions(world) == []
    for table, statement, expected in cases:
        async with tampered(admin, table, statement):
            found = await contradictions(world)
        assert len(found) == len(expected), (statement, found)
        assert all(line.startswith(part) for line, part in zip(found, expected, strict=True)), (statement, found)
    assert await contradictions(world) == []


async def test_policies_that_are_not_what_was_applied_are_named(world: World, admin: asyncpg.Connection) -> None:
    text = "policies: [{name: ask, target: ship, effect: requires_approval, approvers: {members: [Ada]}}]"
    await apply_policies(world.db, world.admin.actor, text)
    rows = ["policy version 2: its rows are not those that the trail applied"]
    file = ["policy version 2: its file is not the one that the trail applied"]
    await named(
        world,
        admin,
        [
            ("policy", "update policy set effect = 'allow' where version = 2", rows),
            ("policy", "update policy set approvers = '{\"members\": []}' where version = 2", rows),
            ("policy", "delete from policy where version = 2", rows),
            ("policy_version", "update policy_version set source = source || ' ' where version = 2", file),
            ("policy_version", "update policy_version set digest = repeat('0', 64) where version = 2", file),
            (
                "policy_version",
                "delete from policy_version where version = 1",
                ["policy version 1: the trail applied it, and it is gone"],
            ),
            (
                "policy_version",
                (
                    "insert into policy_version select org_id, 7, source, digest, rows, note, applied_by from policy_version"
                    " where version = 2"
                ),
                ["policy version 7: no entry of the trail applied it"],
            ),
            (
                "org",
                "update org set policy_version = 1",
                ["policy version 1: it is in force, and the trail applied version 2 last"],
            ),
        ],
    )


async def test_atlases_that_are_not_what_was_published_are_named(world: World, admin: asyncpg.Connection) -> None:
    await publish(world, plain("acme.one", "1.0"))
    await publish(world, plain("acme.one", "2.0"))
    await atlases.retire_atlas(world.db, world.admin.actor, "acme.one", "1.0")
    first, second = "atlas acme.one 1.0", "atlas acme.one 2.0"
    changed = [f"{second}: its content is not what the trail published"]
    await named(
        world,
        admin,
        [
            (
                "atlas_version",
                "update atlas_version set manifest = replace(manifest, 'allow', 'deny') where version = '2.0'",
                changed,
            ),
            ("atlas_version", "update atlas_version set digest = repeat('0', 64) where version = '2.0'", changed),
            (
                "atlas_version",
                "delete from atlas_version where version = '2.0'",
                [f"{second}: the trail published it, and it is gone"],
            ),
            (
                "atlas_version",
                "update atlas_version set version = '3.0' where version = '2.0'",
                [
                    f"{second}: the trail published it, and it is gone",
                    "atlas acme.one 3.0: no entry of the trail published it",
                ],
            ),
            (
                "atlas_version",
                "update atlas_version set retired_at = null, retired_by = null",
                [f"{first}: the trail retired it, and it is not retired"],
            ),
            (
                "atlas_version",
                "update atlas_version set retired_at = plane_now(), retired_by = 'Mallory' where version = '2.0'",
                [f"{second}: it is retired, and no entry of the trail retired it"],
            ),
        ],
    )


async def test_decisions_receipts_and_votes_that_contradict_the_trail_are_named(
    strict: World, admin: asyncpg.Connection
) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    await decide(strict, asked, Choice.DENIED, reason="no")
    subject, receipt = f"approval {asked.id}", f"receipt of approval {asked.id}"
    vote = f"approval {asked.id}, vote of Ada"
    await named(
        strict,
        admin,
        [
            (
                "approval_request",
                "update approval_request set status = 'approved'",
                [
                    f"{subject}: it is approved, and the trail says denied",
                    f"{receipt}: it says denied, and the approval is approved",
                ],
            ),
            (
                "approval_request",
                "update approval_request set status = 'cancelled', resolved_by = null, resolved_by_name = null",
                [
                    f"{subject}: it is cancelled, and the trail decided it",
                    f"{receipt}: it says denied, and the approval is cancelled",
                ],
            ),
            (
                "approval_request",
                "update approval_request set version = 7",
                [
                    f"{subject}: its version or arguments are not those that the trail says were decided",
                    f"{receipt}: it says yes or no to another version of the approval",
                ],
            ),
            (
                "approval_request",
                "update approval_request set resolved_by_name = 'Mallory'",
                [f"{subject}: the trail names somebody else who decided it: Ada"],
            ),
            (
                "approval_receipt",
                "update approval_receipt set body = replace(convert_from(body, 'UTF8'), 'denied', 'approved')::bytea",
                [f"{receipt}: it is not signed with a key of the plane"],
            ),
            (
                "approval_receipt",
                "delete from approval_receipt",
                [f"{subject}: the trail decided it, and its receipt is gone"],
            ),
            (
                "approval_vote",
                "update approval_vote set decision = 'approved'",
                [f"{vote}: it is approved, and the trail says denied"],
            ),
            (
                "approval_vote",
                "delete from approval_vote",
                [f"approval {asked.id}, vote of {strict.admin.member_id}: the trail holds it, and it is gone"],
            ),
            (
                "approval_vote",
                "update approval_vote set version = 9",
                [
                    f"approval {asked.id}, vote of {strict.admin.member_id}: the trail holds it, and it is gone",
                    f"{vote}: no entry of the trail holds it",
                ],
            ),
        ],
    )


async def test_an_approval_that_nobody_decided_is_named(strict: World, admin: asyncpg.Connection) -> None:
    _, (asked,) = await waiting(strict, Shipping())
    forged = (
        "update approval_request set status = 'approved', resolved_at = plane_now(), next_action_at = null,"
        " resolved_by_name = 'Ada', resolved_via = 'api'"
    )
    await named(
        strict,
        admin,
        [("approval_request", forged, [f"approval {asked.id}: it is approved, and no entry of the trail decided it"])],
    )


async def test_messages_that_are_not_what_was_received_are_named(world: World, admin: asyncpg.Connection) -> None:
    session = (await world.say("one")).session_id
    await world.say("two")
    await world.say("three", external_user_id="u-2")
    subject = f"session {session}"
    of_session = f"where session_id = '{session}' and seq = 2"
    await named(
        world,
        admin,
        [
            (
                "message",
                f"update message set text = 'other' {of_session}",
                [f"{subject}, message 2: its text is not what entry 5 says was received"],
            ),
            ("message", f"delete from message {of_session}", [f"{subject}: the message of entry 5 is gone"]),
            (
                "message",
                (
                    "insert into message (org_id, session_id, seq, role, text) select org_id, session_id, 3, role, 'new'"
                    f" from message {of_session}"
                ),
                [f"{subject}, message 3: no entry of the trail received it"],
            ),
        ],
    )


async def test_results_replies_and_checkpoints_that_were_changed_are_named(
    world: World, admin: asyncpg.Connection
) -> None:
    shipping = Shipping()
    agent = await make_agent(world, [turn(ship(), call("look"), text="I ship.")])
    job = await submit(world, agent)
    async with working(world.db, shipping.app):
        assert (await ended(world, job)).status is JobStatus.COMPLETED
    done = await admin.fetchrow(
        "select chain_id, seq from audit_entry where action = 'step_completed' and job_id = $1 order by seq limit 1",
        job,
    )
    place = f"entry {done['seq']} of chain {done['chain_id']}"
    ids = {row["tool_name"]: row["id"] for row in await admin.fetch("select id, tool_name from tool_call")}
    await named(
        world,
        admin,
        [
            (
                "tool_call",
                "update tool_call set result = '\"other\"' where tool_name = 'ship'",
                [f"call {ids['ship']}: its result is not the one of {place}"],
            ),
            (
                "tool_call",
                "update tool_call set result = null where tool_name = 'look'",
                [f"call {ids['look']}: its result is gone; {place} holds its digest"],
            ),
            (
                "job",
                "update job set checkpoint = jsonb_set(checkpoint, '{step_index}', '7')",
                [f"checkpoint of job {job}: CRC mismatch"],
            ),
            ("job", "update job set checkpoint_mac = sha256('x')", [f"checkpoint of job {job}: HMAC mismatch"]),
        ],
    )


async def test_a_reply_that_was_changed_is_named(world: World, admin: asyncpg.Connection) -> None:
    agent = await make_agent(world, [])
    delivery = await replace(world, agent=agent).say("Hello")
    async with working(world.db, Shipping().app):
        assert (await ended(world, delivery.job_id)).status is JobStatus.COMPLETED
    seq = await admin.fetchval("select seq from audit_entry where action = 'step_completed'")
    await named(
        world,
        admin,
        [
            (
                "message",
                "update message set text = 'other' where role = 'assistant'",
                [
                    (
                        f"session {delivery.session_id}, job {delivery.job_id}: the reply of entry {seq} is not among its"
                        " messages"
                    )
                ],
            )
        ],
    )
