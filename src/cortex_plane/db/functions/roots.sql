-- The orgs whose last root is older than this and that have appended anything since, in the order of their ids. Found here,
-- made under each org's own policies.
create or replace function find_unrooted(p_seconds double precision, p_after uuid, p_limit integer) returns table (org_id uuid)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select o.id
  from org o
  left join lateral (
    select r.snapshot, r.created_at from audit_root r where r.org_id = o.id order by r.seq desc limit 1) last on true
  where o.id > p_after
    and (last.created_at is null or last.created_at <= (select plane_now()) - make_interval(secs => p_seconds))
    and (last.snapshot is null or exists (
      select from audit_entry e
      where e.org_id = o.id and e.xid >= pg_snapshot_xmin(last.snapshot)
        and not pg_visible_in_snapshot(e.xid, last.snapshot)))
  order by o.id limit p_limit
$$;

call pg_temp.give_functions('cortex_scheduler', 'find_unrooted(double precision, uuid, integer)');
