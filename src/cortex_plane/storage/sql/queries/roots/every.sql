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
