-- name: above
select r.org_id, r.seq, r.hash, r.body, r.signature, r.key_id, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.seq > $1
order by r.seq
limit $2


-- name: every
-- As grown.sql, of all chains: where there is no snapshot to start from.
select h.chain_id, h.seq, h.hash, rooted.audit_seq is null as is_new, pg_current_snapshot()::text as snapshot,
  (select plane_now()) as now
from (
  select s.session_id as chain_id, s.audit_seq as seq, s.audit_hash as hash from session_head s
  union all
  select o.org_id, o.audit_seq, o.audit_hash from org_head o) h
left join lateral (
  select r.audit_seq from audit_root_head r where r.chain_id = h.chain_id order by r.root_seq desc limit 1) rooted on true
where h.seq > coalesce(rooted.audit_seq, 0)
order by h.chain_id
limit $1


-- name: everything
select seq, body, hash, key_id, signature from audit_root order by org_id, seq


-- name: grown
-- The chains that were appended to by a transaction which the last root's snapshot ($1) could not see. One statement sees
-- one snapshot, and locks nothing.
with changed as (
  select distinct e.chain_id from audit_entry e
  where e.xid >= pg_snapshot_xmin($1::text::pg_snapshot) and not pg_visible_in_snapshot(e.xid, $1::text::pg_snapshot))
select c.chain_id, h.seq, h.hash, rooted.audit_seq is null as is_new, pg_current_snapshot()::text as snapshot,
  (select plane_now()) as now
from changed c
cross join lateral (
  select s.audit_seq as seq, s.audit_hash as hash from session_head s where s.session_id = c.chain_id
  union all
  select o.audit_seq, o.audit_hash from org_head o where o.org_id = c.chain_id) h
left join lateral (
  select r.audit_seq from audit_root_head r where r.chain_id = c.chain_id order by r.root_seq desc limit 1) rooted on true
where h.seq > coalesce(rooted.audit_seq, 0)
order by c.chain_id
limit $2


-- name: heads
-- Every head that a root covers, in the order of the chains, and in each of them in the order of the roots.
select root_seq, chain_id, audit_seq as seq, hash from audit_root_head order by org_id, chain_id, root_seq


-- name: insert
-- No row where somebody else made this one first.
insert into audit_root (org_id, seq, previous, body, hash, key_id, signature, chains, snapshot, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9::text::pg_snapshot, $10)
on conflict (org_id, seq) do nothing
returning seq


-- name: insert_heads
insert into audit_root_head (org_id, root_seq, chain_id, audit_seq, hash)
select $1, $2, h.chain_id, h.seq, h.hash from unnest($3::uuid[], $4::bigint[], $5::bytea[]) h (chain_id, seq, hash)


-- name: last
select seq, hash, chains, snapshot::text as snapshot,
  coalesce(pg_snapshot_xmax(snapshot) > pg_snapshot_xmax(pg_current_snapshot()), true) as foreign_snapshot
from audit_root order by seq desc limit 1


-- name: list_page
select r.seq, r.previous, r.hash, r.body, r.signature, r.key_id, r.chains, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
where r.seq < $1
order by r.seq desc
limit $2


-- name: newest
select r.org_id, r.seq, r.hash, r.body, r.signature, r.key_id, k.public_key, r.created_at
from audit_root r join signing_key k on k.org_id = r.org_id and k.id = r.key_id
order by r.seq desc
limit 1
