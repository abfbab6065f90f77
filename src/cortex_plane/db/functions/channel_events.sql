-- What people did on channels: who handles it, and who listens for it.

-- Takes up to p_lanes chats with something that is due, each with up to p_per_lane of its events in order. Orgs take turns (the caller names
-- the one that was served last, and those that have their share already), and give up to p_per_org chats in a turn; within an org it begins
-- anywhere, so that nobody is always last. While somebody has the first event of a chat, nobody else takes from that chat.
create or replace function claim_channel_events(
  p_claim uuid, p_channels text[], p_after uuid, p_full uuid[], p_lanes integer, p_per_org integer, p_per_lane integer, p_lease interval)
  returns table (org_id uuid, seqs bigint[])
  language plpgsql security definer set search_path = public, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  due timestamptz := plane_now();
  at_org uuid := p_after;
  next_org uuid;
  around boolean := false;
  started bigint;
  at_lane bigint;
  round boolean;
  head record;
  wanted integer := p_lanes;
  left_here integer;
begin
  if not exists (select from channel_event e where e.next_attempt_at <= due) then
    return;
  end if;
  -- What a crash of the database forgets of it is taken again.
  perform set_config('synchronous_commit', 'off', true);
  while wanted > 0 loop
    select e.org_id into next_org from channel_event e
    where e.status = 'pending' and e.org_id > at_org order by e.org_id limit 1;
    if not found or (around and next_org > p_after) then
      exit when around;
      around := true;
      at_org := '00000000-0000-0000-0000-000000000000';
      continue;
    end if;
    at_org := next_org;
    continue when at_org = any (p_full);
    left_here := least(p_per_org, wanted);
    started := hashtextextended(gen_random_uuid()::text, 2);
    at_lane := started;
    round := false;
    while left_here > 0 loop
      select e.connection_id, e.lane, e.next_attempt_at into head from channel_event e
      where e.status = 'pending' and e.org_id = at_org and e.lane > at_lane
      order by e.lane, e.seq limit 1;
      if not found or (round and head.lane > started) then
        exit when round;
        round := true;
        at_lane := -9223372036854775808;
        continue;
      end if;
      at_lane := head.lane;
      continue when head.next_attempt_at > due;
      continue when not exists (
        select from channel_connection c
        where c.org_id = at_org and c.id = head.connection_id and c.channel_type = any (p_channels));
      continue when not pg_try_advisory_xact_lock(hashtextextended(at_org::text || at_lane::text, 5));
      -- A statement of its own: it sees what was committed before the lock was free.
      with first as (
        select e.seq, bool_and(e.next_attempt_at <= due) over (order by e.seq) as reachable from channel_event e
        where e.org_id = at_org and e.lane = at_lane and e.status = 'pending'
        order by e.seq limit p_per_lane)
      select array_agg(f.seq order by f.seq) into seqs from first f where f.reachable;
      continue when seqs is null;
      update channel_event e set taken_by = p_claim, next_attempt_at = due + p_lease
      where e.org_id = at_org and e.lane = at_lane and e.status = 'pending' and e.seq = any (seqs);
      org_id := at_org;
      return next;
      wanted := wanted - 1;
      left_here := left_here - 1;
    end loop;
  end loop;
end
$$;

-- Deletes what vendors do not send again any more, and questions that nobody answered. At most p_limit of each, oldest first.
create or replace function forget_channel_events(p_older interval, p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  gone integer;
begin
  delete from channel_prompt p
  where (p.org_id, p.connection_id, p.chat_id, p.message_ref) in (
    select o.org_id, o.connection_id, o.chat_id, o.message_ref from channel_prompt o
    where o.created_at < (select plane_now()) - p_older order by o.created_at limit p_limit);
  delete from channel_event e
  where (e.org_id, e.connection_id, e.event_id) in (
    select o.org_id, o.connection_id, o.event_id from channel_event o
    where o.received_at < (select plane_now()) - p_older and o.status <> 'pending' order by o.received_at limit p_limit);
  get diagnostics gone = row_count;
  return gone;
end
$$;

-- Connections that are to be listened to and that nobody listens to now: this process does, until its lease has run out.
create or replace function claim_channel_listeners(p_owner uuid, p_channels text[], p_limit integer, p_lease interval)
  returns table (org_id uuid, connection_id uuid, epoch bigint, cursor text, revision integer)
  language plpgsql security definer set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  due timestamptz := plane_now();
  free record;
begin
  for free in
    select c.org_id, c.id, c.revision from channel_connection c
    left join channel_listener l on l.org_id = c.org_id and l.connection_id = c.id
    where c.config ->> 'mode' in ('polling', 'socket', 'gateway', 'http') and c.disabled_at is null and c.channel_type = any (p_channels)
      -- Over HTTP Discord posts all that it has; of Slack the history is read besides.
      and (c.channel_type, c.config ->> 'mode') is distinct from ('discord', 'http')
      and (l.connection_id is null or l.leased_until <= due)
    order by l.leased_until nulls first limit p_limit
  loop
    continue when not pg_try_advisory_xact_lock(hashtextextended(free.id::text, 6));
    insert into channel_listener as l (org_id, connection_id, owner_id, epoch, leased_until)
    values (free.org_id, free.id, p_owner, 1, due + p_lease)
    on conflict (org_id, connection_id) do update
      set owner_id = p_owner, epoch = l.epoch + 1, leased_until = due + p_lease where l.leased_until <= due
    returning l.org_id, l.connection_id, l.epoch, l.cursor into org_id, connection_id, epoch, cursor;
    continue when not found;
    revision := free.revision;
    return next;
  end loop;
end
$$;

-- The lease of what this process listens to is renewed. Returns what it still has, and what it is to listen to: whose connection was
-- disabled or changed is not among it.
create or replace function renew_channel_listeners(p_owner uuid, p_connections uuid[], p_epochs bigint[], p_revisions integer[], p_lease interval)
  returns table (connection_id uuid)
  language plpgsql security definer set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  due timestamptz := plane_now();
begin
  return query
    update channel_listener l set leased_until = due + p_lease
    from unnest(p_connections, p_epochs, p_revisions) h (id, epoch, revision)
    join channel_connection c on c.id = h.id and c.revision = h.revision and c.disabled_at is null
    where l.org_id = c.org_id and l.connection_id = h.id and l.owner_id = p_owner and l.epoch = h.epoch and l.leased_until > due
    returning l.connection_id;
end
$$;

call pg_temp.give_functions('cortex_scheduler', 'claim_channel_events(uuid, text[], uuid, uuid[], integer, integer, integer, interval)',
  'forget_channel_events(interval, integer)', 'claim_channel_listeners(uuid, text[], integer, interval)',
  'renew_channel_listeners(uuid, uuid[], bigint[], integer[], interval)');

-- Just before an event is handled: the lease is renewed and the try is counted. No row: somebody else has it by now. What comes of the
-- event flushes the log; without it nothing was done.
create or replace function begin_channel_event(p_org uuid, p_seq bigint, p_claim uuid, p_lease interval)
  returns table (
    event_id text, payload jsonb, attempts integer, id uuid, channel_type text, name text, config jsonb, sealed bytea,
    disabled_at timestamptz, agent_id uuid, now timestamptz)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform set_config('app.org_id', p_org::text, true);
  perform set_config('synchronous_commit', 'off', true);
  return query
    update channel_event e set attempts = e.attempts + 1, next_attempt_at = plane_now() + p_lease
    from channel_connection c
    where e.org_id = p_org and e.seq = p_seq and e.taken_by = p_claim and e.status = 'pending'
      and c.org_id = p_org and c.id = e.connection_id
    returning e.event_id, e.payload, e.attempts, c.id, c.channel_type, c.name, c.config, c.sealed, c.disabled_at, c.agent_id,
      plane_now();
end
$$;

-- An event is over. One that failed keeps its payload, so that somebody can see what it was.
create or replace function settle_channel_event(p_org uuid, p_seq bigint, p_claim uuid, p_status text, p_error text) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform set_config('app.org_id', p_org::text, true);
  update channel_event e
  set status = p_status, payload = case when p_status = 'done' then null else e.payload end, next_attempt_at = null, taken_by = null,
    settled_at = plane_now(), last_error = p_error
  where e.org_id = p_org and e.seq = p_seq and e.taken_by = p_claim and e.status = 'pending';
  return found;
end
$$;

-- What an agent says to the person of its session, or what is to be said about it, goes to the chat from which they wrote last. Where a
-- message there shows the beginning of it, that message becomes the whole.
create or replace function push_reply(p_org uuid, p_session uuid, p_chat uuid, p_data jsonb, p_at timestamptz) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_stream uuid;
begin
  select h.stream_id into the_stream from session_head h where h.org_id = p_org and h.session_id = p_session;
  if the_stream is not null then
    -- The head is not written: `advance_stream` lets go of a message that is over, and whoever ends a job may not lock the head yet.
    -- In another thread of its chat a message stays where it is until its answer is whole.
    if exists (
      select from notification n
      where n.org_id = p_org and n.id = the_stream and n.data ? 'stream' and n.data ->> 'chat' = p_chat::text) then
      perform end_stream(p_org, the_stream, p_data, p_at);
      return;
    end if;
    perform end_stream(p_org, the_stream, '{"ended": "moved"}', p_at);
  end if;
  insert into notification (org_id, id, kind, connection_id, channel_type, user_account_id, address, data, next_attempt_at, created_at)
  select p_org, new_id(), 'reply', c.connection_id, n.channel_type, s.user_account_id, c.chat_id,
    jsonb_build_object('chat', c.id, 'session', p_session, 'thread', c.thread) || p_data, p_at, p_at
  from channel_chat c
  join channel_connection n on n.org_id = p_org and n.id = c.connection_id
  join session s on s.org_id = p_org and s.id = p_session
  where c.org_id = p_org and c.id = p_chat and s.user_account_id is not null;
end
$$;

-- A conversation that stops says so where its person wrote last.
create or replace function job_reported() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_chat uuid;
begin
  select h.chat_id into the_chat from session_head h where h.org_id = new.org_id and h.session_id = new.session_id;
  if the_chat is not null then
    perform push_reply(new.org_id, new.session_id, the_chat, jsonb_build_object('job', new.id, 'status', new.status), new.updated_at);
  end if;
  return null;
end
$$;

create or replace trigger job_reported after update of status on job
  for each row when (new.kind = 'conversation' and old.status <> new.status and new.status in ('FAILED', 'WAITING_FOR_APPROVAL'))
  execute function job_reported();
