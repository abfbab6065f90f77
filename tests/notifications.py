"""Rows of the outbox as tests need them, without a channel."""

from __future__ import annotations

from uuid import UUID

import asyncpg

from cortex_plane.approvals.model.approvals import Approval
from cortex_plane.kernel.ids import new_id
from tests.macs import sign_mappings
from tests.people import World

_LETTER = """
with way as (
  insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, 'email', $3) returning id),
person as (
  insert into channel_mapping (org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at)
  select $1, $4, w.id, $5, 'email', $6, plane_now() from way w returning id)
insert into notification (org_id, id, kind, approval_id, connection_id, channel_type, mapping_id, user_account_id, address,
  status, attempts, last_error, tried_at, created_at)
select $1, $7, 'approval', $8, w.id, 'email', p.id, $5, $6, 'dead', 12, '550 nobody lives here', plane_now(), plane_now()
from way w, person p
"""


async def dead_letter(world: World, approval_id: UUID) -> UUID:
    """A message to the admin that was given up."""
    id, address = new_id(), f"{new_id()}@example.com"
    async with world.db.transaction(world.org_id) as tx:
        await tx.rows(
            _LETTER, world.org_id, new_id(), f"mail {id}", new_id(), world.admin.actor.user_account_id, address,
            id, approval_id,
        )  # fmt: skip
    await sign_mappings(world.db, world.org_id)
    return id


COPY = """
insert into approval_request
select (jsonb_populate_record(r, jsonb_build_object('id', gen_random_uuid(), 'action', 'number ' || n,
  'terms_hash', '\\x' || encode(sha256(n::text::bytea), 'hex')))).*
from approval_request r, generate_series($2::integer, $3::integer) n where r.id = $1
returning id, action
"""


async def copies(admin: asyncpg.Connection, approval: Approval, first: int, last: int) -> list[UUID]:
    """Requests like this one, called `number 7` and so on, which found their approvers in this order."""
    made = await admin.fetch(COPY, approval.id, first, last)
    numbered = {int(row["action"].removeprefix("number ")): row["id"] for row in made}
    ids = [numbered[number] for number in range(first, last + 1)]
    org_id = await admin.fetchval("select org_id from approval_request where id = $1", approval.id)
    for id in ids:
        await admin.execute("select notify_approvers($1, $2)", org_id, id)
    return ids
