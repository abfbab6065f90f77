-- A job whose checkpoint cannot be trusted is about to fail: its history says so beside the error, and everybody who steers jobs is told
-- on every address that they proved. At most a hundred people.
create or replace function report_corruption(p_org uuid, p_job uuid, p_type text, p_error text) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  at timestamptz := plane_now();
begin
  perform set_config('app.job_change',
    jsonb_build_object('corruption_detected', true, 'corruption_type', p_type)::text, true);
  insert into notification (org_id, id, kind, connection_id, channel_type, mapping_id, user_account_id, address, data,
    next_attempt_at, created_at)
  select p_org, new_id(), 'alert', m.connection_id, m.channel_type, m.id, u.id, m.channel_user_id,
    jsonb_build_object('alert', 'checkpoint_corrupt', 'job_id', j.id, 'session_id', j.session_id, 'agent_id', j.agent_id,
      'agent', a.slug, 'corruption_type', p_type, 'message', left(p_error, 500)), at, at
  from job j
  join agent a on a.org_id = j.org_id and a.id = j.agent_id
  cross join lateral (
    select p.id from user_account p
    where p.org_id = p_org and p.deactivated_at is null and p.roles && array['operator', 'admin']
    order by p.id limit 100) u
  join channel_mapping m on m.org_id = p_org and m.user_account_id = u.id
  join channel_connection c on c.org_id = p_org and c.id = m.connection_id
  where j.org_id = p_org and j.id = p_job and m.verified_at is not null and m.suppressed_at is null and c.disabled_at is null
    and c.channel_type = any (deliverable_channels()) and c.channel_type <> all (public_channels());
  return true;
end
$$;
