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
