-- What stewards want to be told, over a webhook of their org: written with what it tells, sent by the outbox.

-- p_notices: [{url, atlas_id, version, steward, trigger, data}]. Where no webhook of the org that is enabled has exactly this
-- address, nothing is sent: a manifest names an address, and an admin decides whether the plane speaks to it. What a session
-- has to tell one address is told in order.
create or replace function notify_stewards(p_org uuid, p_session uuid, p_notices jsonb, p_now timestamptz) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  insert into notification (org_id, id, kind, connection_id, channel_type, address, data, next_attempt_at, created_at)
  select p_org, new_id(), 'notice', c.id, c.channel_type, p_session::text,
    (n.notice - 'url') || jsonb_build_object('session_id', p_session), p_now, p_now
  from jsonb_array_elements(p_notices) with ordinality n (notice, number)
  cross join lateral (
    select w.id, w.channel_type from channel_connection w
    where w.org_id = p_org and w.channel_type = 'webhook' and w.disabled_at is null
      and w.config ->> 'url' = n.notice ->> 'url'
    order by w.created_at, w.id limit 1) c
  order by n.number;
end
$$;
