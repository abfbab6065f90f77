"""Hot look-ups go through an index that finds one row, also before PostgreSQL has any statistics."""

from __future__ import annotations

import re
from uuid import UUID

import asyncpg
import pytest

from cortex_plane.calls import store as calls_store
from cortex_plane.db.database import every_query
from cortex_plane.kernel.ids import new_id
from tests.fixtures.people import World
from tests.storage.leases import queue

ROWS = 3000

# The statements of the hot verbs, as they stand in sql/functions, and the index that must serve each.
LOOKUPS = {
    "the open conversation of a person": (
        (
            "select * from session s where s.org_id = $1 and s.user_account_id = $2"
            " and s.agent_id is not distinct from $3 and s.kind = 'conversation' and s.status <> 'TERMINATED'"
        ),
        {"uq_session_open_conversation", "idx_session_user"},
    ),
    "the open job of a session": (
        (
            "select j.id from job j where j.org_id = $1 and j.session_id = $2 and j.kind = 'conversation'"
            " and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED') and $3::uuid is not null"
        ),
        {"uq_job_open_conversation"},
    ),
    "the head of a session": (
        "select * from session_head where org_id = $1 and session_id = $2 and $3::uuid is not null for update",
        {"session_head_pkey"},
    ),
}


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
@pytest.mark.fresh_database
async def test_hot_lookups_use_their_index(world: World, admin: asyncpg.Connection, analyzed: bool) -> None:
    delivery = await world.say()
    await admin.execute("alter table session disable trigger all; alter table job disable trigger all")
    await admin.execute(
        "insert into session (org_id, id, kind, user_account_id, agent_id, status, opened_by)"
        " select $1, gen_random_uuid(), 'conversation', gen_random_uuid(), $2, 'ACTIVE', $1"
        " from generate_series(1, $3)",
        world.org_id, world.agent.id, ROWS,
    )  # fmt: skip
    await admin.execute(
        "insert into session_head (org_id, session_id) select org_id, id from session on conflict do nothing"
    )
    await admin.execute(
        "insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload)"
        " select org_id, gen_random_uuid(), id, agent_id, 1, 'conversation', '{}' from session where id <> $1",
        delivery.session_id,
    )
    if analyzed:
        await admin.execute("analyze")
    await admin.execute("set plan_cache_mode = force_generic_plan")
    for name, (statement, indexes) in LOOKUPS.items():
        plan = await _plan(admin, statement)
        used = set(re.findall(r"using (\w+)", plan)) | set(re.findall(r"Index Scan on (\w+)", plan))
        assert "Seq Scan" not in plan, f"{name}:\n{plan}"
        assert used & indexes, f"{name}:\n{plan}"


async def _plan(connection: asyncpg.Connection, statement: str, *known: UUID) -> str:
    prepared = await connection.prepare(f"explain {statement}")
    places = len(prepared.get_parameters())
    rows = await prepared.fetch(*[*known, *(new_id() for _ in range(places))][:places])
    return "\n".join(row[0] for row in rows)


# Approvals ---------------------------------------------------------------------------------------------------

PENDING = """
insert into approval_request (org_id, id, kind, session_id, job_id, agent_id, step_index, action_type, tool_name,
  target, arguments, input_hash, risk, action_summary, rule, policy_version, template, required_clearance,
  timeout_seconds, approvers, on_deny, self_approval, terms_hash, requested_at, deadline, next_action_at)
select org_id, gen_random_uuid(), 'call', session_id, id, agent_id, 0, 'tool_call', 'ship', 'ship', '{}',
  sha256(id::text::bytea), 'high', 'x', 'x', '0.1', 'dev_only', 0, 60, '{}', 'fail', true, sha256('terms'),
  plane_now() - make_interval(secs => row_number() over ()), plane_now() + interval '1 hour',
  plane_now() + interval '1 hour'
from job
"""
VOTES = """
insert into approval_vote (org_id, approval_id, version, user_account_id, member, decision, channel, created_at)
select org_id, id, 0, gen_random_uuid(), 'Somebody', 'approved', 'api', plane_now() from approval_request
"""
INVOCATIONS = """
insert into approval_invocation (org_id, approval_id, call_id, job_id)
select org_id, id, gen_random_uuid(), job_id from approval_request
"""
CALLS = """
insert into tool_call (org_id, id, job_id, step_index, position, tool_name, arguments, input_hash, read_only, status,
  verdict, rule)
select org_id, call_id, job_id, 0, 0, 'ship', '{}', sha256(''), false, 'awaiting', 'requires_approval', 'default'
from approval_invocation
"""
_CONCERNED = "select i.approval_id from approval_invocation i where i.org_id = $1 and i.job_id = any (array[$2::uuid])"

# The statements of sql/functions/approvals.sql and the queries of approvals, and the indexes that must serve each.
OF_APPROVALS = {
    "what is due": (
        (
            "select r.org_id, r.id, r.next_action_at from approval_request r"
            " where r.next_action_at <= (select plane_now()) order by r.next_action_at limit 200"
        ),
        {"idx_approval_request_due"},
    ),
    "the next deadline": (
        "select min(r.next_action_at) from approval_request r where r.next_action_at is not null",
        {"idx_approval_request_due"},
    ),
    "idle sessions": (
        (
            "select s.org_id, s.id, s.idle_check_at from session s where s.idle_check_at <= (select plane_now())"
            " order by s.idle_check_at limit 200"
        ),
        {"idx_session_idle"},
    ),
    "the jobs of an approval": (
        (
            "select coalesce(array_agg(distinct i.job_id), '{}') from approval_invocation i"
            " where i.org_id = $1 and i.approval_id = $2 and $3::uuid is not null"
        ),
        {"approval_invocation_pkey"},
    ),
    "the approval itself": (
        (
            "select r.* from approval_request r where r.org_id = $1 and r.id = $2 and $3::uuid is not null"
            " for no key update"
        ),
        {"approval_request_pkey", "idx_approval_request_id"},
    ),
    "its calls": (
        (
            "select c.id, c.status from approval_invocation i join tool_call c on c.org_id = i.org_id and c.id = i.call_id"
            " where i.org_id = $1 and i.approval_id = $2 and $3::uuid is not null"
        ),
        {"approval_invocation_pkey", "tool_call_pkey"},
    ),
    "the open approvals of its jobs": (
        (
            "select from approval_request r where r.org_id = $1 and (r.status = 'pending' or r.id = $3) and r.id in"
            f" ({_CONCERNED} union all select $3::uuid where $3::uuid is not null)"
            ' order by r.tool_name collate "C", r.input_hash, r.id for no key update'
        ),
        {"idx_approval_invocation_job", "approval_request_pkey", "idx_approval_request_id"},
    ),
    "the same call that is asked for already": (
        (
            "select id from approval_request where org_id = $1 and session_id = $2 and tool_name = 'ship'"
            " and input_hash = sha256($3::uuid::text::bytea) and terms_hash = sha256('terms') and status = 'pending'"
            " and kind = 'call' and deadline > plane_now() for no key update"
        ),
        {"uq_approval_request_pending", "idx_approval_request_session"},
    ),
    "what is pending, newest first": (
        (
            "select * from approval_shown a where a.org_id = $1"
            " and a.status = 'pending' and $2::uuid is not null and $3::uuid is not null order by a.created_at desc, a.id desc limit 51"
        ),
        {"idx_approval_request_status", "idx_approval_request_list"},
    ),
    "the request that a call belongs to": (
        (
            "select i.approval_id from approval_invocation i where i.org_id = $1 and i.call_id = $2 and $3::uuid is not null"
            " order by i.created_at desc limit 1"
        ),
        {"idx_approval_invocation_call"},
    ),
}


# Without statistics PostgreSQL reads through a table of this size, because a third of it might be due.
FOR_A_RANGE = {"what is due", "idle sessions"}


@pytest.mark.parametrize("analyzed", [False, True], ids=["without statistics", "with statistics"])
@pytest.mark.proves("D.105")
@pytest.mark.fresh_database
async def test_deciding_does_not_look_at_what_is_merely_pending(
    world: World, admin: asyncpg.Connection, analyzed: bool
) -> None:
    for table in ("session", "job", "approval_request", "approval_invocation", "approval_vote", "tool_call"):
        await admin.execute(f"alter table {table} disable trigger all")
    await queue(admin, world, ROWS)
    for statement in (PENDING, INVOCATIONS, CALLS, VOTES):
        await admin.execute(statement)
    await admin.execute("update session set idle_check_at = plane_now() + interval '1 day'")
    if analyzed:
        await admin.execute("analyze")
    await admin.execute("set plan_cache_mode = force_generic_plan")
    for name, (statement, indexes) in OF_APPROVALS.items():
        if not analyzed and name in FOR_A_RANGE:
            continue
        plan = await _plan(admin, statement, world.org_id)
        used = set(re.findall(r"using (\w+)", plan)) | set(re.findall(r"Index Scan on (\w+)", plan))
        # Of agents and of policies there are few, whatever is pending.
        for table in re.findall(r"Seq Scan on (\w+)", plan):
            assert table in ("agent", "team"), f"{name}:\n{plan}"
        assert used & indexes, f"{name}:\n{plan}"


# Lists -------------------------------------------------------------------------------------------------------

EXTERNAL = """
insert into external_call (org_id, call_id, job_id, session_id, agent_id, opener, asker, claims_read_only, risk, timeout_seconds,
  asked_hash, policies, created_at)
select i.org_id, i.call_id, i.job_id, r.session_id, r.agent_id, i.org_id, i.org_id, false, 'high', 60, sha256(''), '0.1', r.requested_at
from approval_invocation i join approval_request r on r.org_id = i.org_id and r.id = i.approval_id
"""
PERSON = '{"id": null, "roles": ["admin"], "clearance": 9, "settles": true}'
LISTS: dict[str, tuple[tuple[object, ...], str, set[str]]] = {
    "approvals/list_approvals": (
        (None, None, 21, None, None, None, None, None),
        "approval_request",
        {"idx_approval_request_list", "idx_approval_request_status"},
    ),
    "approvals/list_inbox": (
        (new_id(), ["admin"], 9, True, None, None, 0, 21, PERSON, None),
        "approval_request",
        {"idx_approval_request_urgent"},
    ),
    "calls/list_calls": ((None, None, 21, None, None, None), "external_call", {"idx_external_call_list"}),
    "calls/list_calls, one status": (
        (None, None, 21, None, None, "intended"),
        "external_call",
        {"idx_external_call_list"},
    ),
}
MOST_PAGES = {"calls/list_calls, one status": 3_000}
"""It looks up 500 calls; all of them would be 9,000 pages."""


@pytest.mark.fresh_database
async def test_a_page_of_a_list_reads_only_its_rows(
    world: World, admin: asyncpg.Connection, app: asyncpg.Connection
) -> None:
    for table in ("session", "job", "approval_request", "approval_invocation", "tool_call", "external_call"):
        await admin.execute(f"alter table {table} disable trigger all")
    await queue(admin, world, ROWS)
    for statement in (PENDING, INVOCATIONS, CALLS, EXTERNAL):
        await admin.execute(statement)
    await admin.execute("vacuum analyze")
    await app.execute(f"set app.org_id = '{world.org_id}'")
    for mode in ("force_generic_plan", "force_custom_plan"):
        await app.execute(f"set plan_cache_mode = {mode}")
        for name, (values, table, indexes) in LISTS.items():
            query = every_query()[name.partition(",")[0]]
            prepared = await app.prepare(f"explain (analyze, buffers, timing off) {query}")
            plan = "\n".join(row[0] for row in await prepared.fetch(*values))
            used = set(re.findall(r"using (\w+)", plan))
            assert f"Seq Scan on {table}" not in plan, f"{name}, {mode}:\n{plan}"
            assert used & indexes, f"{name}, {mode}:\n{plan}"
            pages = int(re.search(r"Buffers: shared hit=(\d+)", plan)[1])  # type: ignore[index]
            assert pages < MOST_PAGES.get(name, 1_000), f"{name}, {mode}:\n{plan}"


@pytest.mark.fresh_database
async def test_calls_about_a_deployment_are_found_by_its_key(world: World, admin: asyncpg.Connection) -> None:
    """However many its connection has asked for: each webhook of a deployment looks for them."""
    await admin.execute("set enable_seqscan = off; set role cortex_app")
    await admin.execute("select set_config('app.org_id', $1, false)", str(world.org_id))
    plan = await admin.fetch(f"explain {calls_store.queries.list_asking_sessions}", world.connection.id, "deployment:1")
    found = re.search(
        r"idx_external_call_callback_key.*?Index Cond: ([^\n]*)", "\n".join(row[0] for row in plan), re.DOTALL
    )
    assert found is not None, plan
    assert all(f"({column} = " in found[1] for column in ("callback_id", "key")), found[1]
