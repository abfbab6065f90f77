-- How many sessions of each org have a job that waits for a person or is paused, for the platform's metrics. Each org is
-- counted under its own policies, through its index on status: the cost is that of the orgs and of what waits.
create or replace function count_suspended_sessions() returns table (org_id uuid, sessions bigint)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  for org_id in select r.org_id from resolve_orgs(null, null, null) r loop
    perform set_config('app.org_id', org_id::text, true);
    select count(distinct j.session_id) into sessions from job j
    where j.org_id = count_suspended_sessions.org_id and j.status in ('WAITING_FOR_APPROVAL', 'PAUSED');
    if sessions > 0 then
      return next;
    end if;
  end loop;
end
$$;
