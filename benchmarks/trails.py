"""A long audit trail in a moment, for whoever measures or tests what long ones cost."""

from __future__ import annotations

from uuid import UUID

import asyncpg

# One recursive query: each hash is made from the one before, by the same function that chains all others.
_FILL = """
with recursive grown as (
  select audit_seq as seq, audit_hash as hash, null::bytea as body, null::bytea as body_hash,
    plane_now() as at
  from org_head where org_id = $1
  union all
  select g.seq + 1, chain_hash(g.hash, g.seq + 1, g.at, 'filled', null, sha256(n.body)), n.body, sha256(n.body), g.at
  from grown g, lateral (select convert_to(
    '{"action":"filled","actor":{"kind":"system","name":"bench"},"data":{"number":' || g.seq + 1 || ',"padding":"'
    || repeat('x', $3) || '"}}', 'UTF8') as body) n
  where g.seq < (select audit_seq from org_head where org_id = $1) + $2),
kept as (
  insert into audit_entry (org_id, session_id, seq, format, action, body, body_hash, hash, created_at)
  select $1, null, seq, 2, 'filled', body, body_hash, hash, at from grown where body is not null
  returning seq, hash)
update org_head set (audit_seq, audit_hash) = (select k.seq, k.hash from kept k order by k.seq desc limit 1)
where org_id = $1
"""


async def fill(admin: asyncpg.Connection, org_id: UUID, count: int, padding: int = 150) -> None:
    """Lengthen the org's own chain by ``count`` entries. Needs a login that sees past row-level security."""
    await admin.execute(_FILL, org_id, count, padding, timeout=600)
