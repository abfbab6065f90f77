-- Resolutions: what an agent that runs elsewhere was told that it may do.

-- A call is written under a resolution that still holds: the last look at its time, in the commit that writes the call.
create or replace function execute_resolution(p_org uuid, p_resolution uuid, p_call uuid, p_now timestamptz) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  ended timestamptz;
begin
  select r.expires_at into strict ended from resolution r where r.org_id = p_org and r.id = p_resolution;
  if ended <= p_now then
    raise exception using errcode = 'CX409', detail = 'resolution_expired',
      message = 'This resolution has expired.', hint = 'Resolve again, and execute under the new one.';
  end if;
  update resolution r set executed = true where r.org_id = p_org and r.id = p_resolution and not r.executed;
  insert into resolution_call (org_id, call_id, resolution_id) values (p_org, p_call, p_resolution);
end
$$;

-- Forgets what expired p_unused ago and nothing was executed under, and the bodies of what expired p_used ago. At most p_limit
-- of each, oldest first; returns how many of the more.
create or replace function forget_resolutions(p_unused interval, p_used interval, p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  gone integer;
  emptied integer;
begin
  delete from resolution r
  where (r.org_id, r.id) in (
    select o.org_id, o.id from resolution o
    where not o.executed and o.expires_at < (select plane_now()) - p_unused
    order by o.expires_at limit p_limit)
    and not r.executed;
  get diagnostics gone = row_count;
  update resolution r set request = '{}', answer = '{}', atlases = '[]', emptied_at = (select plane_now())
  where (r.org_id, r.id) in (
    select o.org_id, o.id from resolution o
    where o.executed and o.emptied_at is null and o.expires_at < (select plane_now()) - p_used
    order by o.expires_at limit p_limit);
  get diagnostics emptied = row_count;
  return greatest(gone, emptied);
end
$$;

call pg_temp.give_functions('cortex_scheduler', 'forget_resolutions(interval, interval, integer)');
