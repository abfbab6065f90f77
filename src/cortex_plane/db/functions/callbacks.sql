-- Agents that run elsewhere, and vendors that hold something: they are told when somebody decided.

-- A request is over: the agents of its calls are told, where they named a webhook, in the transaction that ended it. Each call is
-- a lane of its own, because nothing orders them: a receiver that fails for one holds up no other. What it says is read when it is sent.
create or replace function approval_over() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  insert into notification (org_id, id, kind, approval_id, call_id, connection_id, channel_type, address, data,
    next_attempt_at, created_at)
  select x.org_id, new_id(), 'callback', new.id, x.call_id, c.id, c.channel_type, x.call_id::text,
    jsonb_build_object('agent', a.slug), t.at, t.at
  from (select plane_now() as at) t cross join approval_invocation i
  join external_call x on x.org_id = i.org_id and x.call_id = i.call_id
  join channel_connection c on c.org_id = x.org_id and c.id = x.callback_id
  join agent a on a.org_id = x.org_id and a.id = x.agent_id
  where i.org_id = new.org_id and i.approval_id = new.id and c.channel_type = 'webhook'
  on conflict (org_id, call_id, approval_id) where call_id is not null do nothing;
  -- Where a vendor holds it, the plane itself acts on the decision: it begins the call, and then says so to the vendor.
  insert into channel_event (org_id, connection_id, event_id, lane, payload)
  select x.org_id, c.id, format('decided:%s:%s', x.call_id, new.id), hashtextextended(x.call_id::text, 4),
    jsonb_build_object('decided', x.call_id)
  from approval_invocation i
  join external_call x on x.org_id = i.org_id and x.call_id = i.call_id
  join channel_connection c on c.org_id = x.org_id and c.id = x.callback_id
  where i.org_id = new.org_id and i.approval_id = new.id and c.channel_type <> 'webhook'
  on conflict do nothing;
  return null;
end
$$;

create or replace trigger approval_over after update on approval_request
  for each row when (old.status = 'pending' and new.status <> 'pending')
  execute function approval_over();
