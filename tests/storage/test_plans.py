"""Hot look-ups go through an index that finds one row, also before PostgreSQL has any statistics."""

from __future__ import annotations

import re

import asyncpg
import pytest

from cortex_plane.operations.verbs import new_id
from tests.people import World

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


async def _plan(connection: asyncpg.Connection, statement: str) -> str:
    prepared = await connection.prepare(f"explain {statement}")
    rows = await prepared.fetch(new_id(), new_id(), new_id())
    return "\n".join(row[0] for row in rows)
