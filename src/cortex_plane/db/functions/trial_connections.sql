-- Connections to the emulators of `cortex up`, of any org, that are not disabled.
create or replace function find_trial_connections() returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select c.org_id, c.id from channel_connection c where c.config ? 'emulated' and c.disabled_at is null
$$;

call pg_temp.give_functions('cortex_scheduler', 'find_trial_connections()');
