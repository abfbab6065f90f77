-- A connection, found before its org is known, as in resolvers.sql: only (org, id).
create or replace function resolve_connection(p_id uuid) returns table (org_id uuid, id uuid)
  language sql stable security definer set search_path = public, pg_temp as $$
  select c.org_id, c.id from channel_connection c where c.id = p_id
$$;

-- Connections of a type, in any org, to which nothing has got through for so long. At most p_limit, the longest first.
create or replace function find_failing_connections(p_channel text, p_longer interval, p_limit integer)
  returns table (org_id uuid, id uuid)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select c.org_id, c.id from channel_connection c
  where c.failing_since <= (select plane_now()) - p_longer and c.disabled_at is null and c.channel_type = p_channel
  order by c.failing_since limit p_limit
$$;

-- Deletes events of any org that nobody sends again. At most p_limit, oldest first.
create or replace function forget_inbound_events(p_older interval, p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  gone integer;
begin
  delete from inbound_event e
  where (e.org_id, e.connection_id, e.event_id) in (
    select o.org_id, o.connection_id, o.event_id from inbound_event o
    where o.received_at < (select plane_now()) - p_older
    order by o.received_at limit p_limit);
  get diagnostics gone = row_count;
  return gone;
end
$$;

call pg_temp.give_functions('cortex_resolver', 'resolve_connection(uuid)');
call pg_temp.give_functions('cortex_scheduler',
  'find_failing_connections(text, interval, integer)', 'forget_inbound_events(interval, integer)');
