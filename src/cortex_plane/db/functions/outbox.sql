-- The outbox: who is told, when a message is due again, and who delivers it.

-- The channels that carry approvals, as `tenancy/model/identities.py` lists them.
create or replace function deliverable_channels() returns text[]
  language sql immutable parallel safe
  return array['email', 'webhook', 'telegram', 'slack', 'discord', 'whatsapp', 'github', 'gitlab'];

-- Of those, the channels on which nobody can be written to in private: people are asked there in shared places alone.
create or replace function public_channels() returns text[]
  language sql immutable parallel safe
  return array['github', 'gitlab'];

-- Whether an org asks for approvals over a channel: over all of them where it names none.
create or replace function uses_channel(p_org uuid, p_channel text) returns boolean
  language sql stable set search_path = public, pg_temp as $$
  select coalesce(
    (select o.settings -> 'approval_channels' = '[]' or o.settings -> 'approval_channels' ? p_channel from org o where o.id = p_org),
    true)
$$;

-- The shared places that the policies of a request name, as `policies/model/places.py` writes them: each gets one message, over the
-- connection that is named, or over the only one of its channel. Where there is no such connection the request says so, once.
create or replace function notify_places(p_org uuid, p_approval uuid) returns integer
  language plpgsql set search_path = public, pg_temp as $$
declare
  told integer;
begin
  with request as (
    select r.* from approval_request r where r.org_id = p_org and r.id = p_approval and r.status = 'pending'),
  parts as (
    select regexp_match(e.entry, '^([a-z][a-z0-9_-]*)(?:@([^:]+))?:(.+)$') as part, r.escalation_level
    from request r cross join unnest(r.channels) e (entry)),
  places as (
    select p.part[1] as channel_type, p.part[3] as address, p.escalation_level as level,
      array(select c.id from channel_connection c
        where c.org_id = p_org and c.channel_type = p.part[1] and c.disabled_at is null
          and (p.part[2] is null or c.name = p.part[2])
        limit 2) as connections
    from parts p where p.part is not null and uses_channel(p_org, p.part[1]) and p.part[1] = any (deliverable_channels())),
  problem as (
    insert into approval_event (org_id, approval_id, event_type, channel, payload, created_at)
    select p_org, p_approval, 'undeliverable', p.channel_type, jsonb_build_object('member', p.address, 'reason',
        case cardinality(p.connections) when 0 then 'There is no such connection, or it is disabled.'
          else 'Several connections could post there, and the policy names none.' end), plane_now()
    from places p
    where cardinality(p.connections) <> 1 and not exists (
      select from approval_event e
      where e.org_id = p_org and e.approval_id = p_approval and e.event_type = 'undeliverable' and e.channel = p.channel_type
        and e.payload ->> 'member' = p.address))
  insert into notification (org_id, id, kind, approval_id, connection_id, channel_type, address, data, next_attempt_at, created_at)
  select p_org, new_id(), 'approval', p_approval, p.connections[1], p.channel_type, p.address,
    jsonb_build_object('level', p.level, 'place', p.address), t.at, t.at
  from (select plane_now() as at) t cross join places p where cardinality(p.connections) = 1
  on conflict (org_id, approval_id, connection_id, address) where kind = 'approval' and mapping_id is null do nothing;
  get diagnostics told = row_count;
  return told;
end
$$;

-- Everybody who may decide a request now is told on every address that they proved, once. At most a hundred people, first
-- whose session it is, then whom it names.
create or replace function notify_approvers(p_org uuid, p_approval uuid) returns integer
  language plpgsql set search_path = public, pg_temp as $$
declare
  told integer;
  posted integer := 0;
begin
  if exists (select from approval_request r, unnest(r.channels) e (entry)
    where r.org_id = p_org and r.id = p_approval and strpos(e.entry, ':') > 0) then
    posted := notify_places(p_org, p_approval);
  end if;
  -- Most orgs have no such channel: they pay one look for it.
  if not exists (
    select from channel_connection c
    where c.org_id = p_org and c.disabled_at is null and c.channel_type = any (deliverable_channels())) then
    return posted;
  end if;
  with request as (
    select r.* from approval_request r where r.org_id = p_org and r.id = p_approval and r.status = 'pending'),
  ways as (
    select m.id as mapping_id, m.connection_id, m.channel_type, m.channel_user_id, d.id as member_id,
      r.owner_id is not distinct from d.id as owner, r.approvers -> 'members' ? d.id::text as named,
      exists (select from notification n
        where n.org_id = p_org and n.approval_id = p_approval and n.user_account_id = d.id) as known
    from request r
    cross join lateral approval_deciders(p_org, p_approval) d
    join channel_mapping m on m.org_id = p_org and m.user_account_id = d.id
    join channel_connection c on c.org_id = p_org and c.id = m.connection_id
    where m.verified_at is not null and m.suppressed_at is null and c.disabled_at is null
      and c.channel_type = any (deliverable_channels()) and c.channel_type <> all (public_channels())
      and (r.channels is null or c.channel_type = any (r.channels)) and uses_channel(p_org, c.channel_type)),
  people as (
    select w.member_id,
      row_number() over (order by bool_or(w.known) desc, bool_or(w.owner) desc, bool_or(w.named) desc, w.member_id) as place
    from ways w group by w.member_id)
  insert into notification (org_id, id, kind, approval_id, connection_id, channel_type, mapping_id, user_account_id, address,
    data, next_attempt_at, created_at)
  select p_org, new_id(), 'approval', p_approval, w.connection_id, w.channel_type, w.mapping_id, w.member_id,
    w.channel_user_id, jsonb_build_object('level', (select r.escalation_level from request r)), t.at, t.at
  from (select plane_now() as at) t cross join ways w join people p on p.member_id = w.member_id and p.place <= 100
  on conflict (org_id, approval_id, mapping_id) where approval_id is not null do nothing;
  get diagnostics told = row_count;
  return told + posted;
end
$$;

-- Somebody can be reached in a new way: what waits for their decision already is told there, the newest 200 of it. Locks no
-- request (one that ends meanwhile is told to nobody who was never asked) and waits for nobody: until this commits nobody else
-- knows the way.
create or replace function notify_mapping(p_org uuid, p_mapping uuid) returns integer
  language plpgsql set search_path = public, pg_temp as $$
declare
  told integer;
begin
  with way as (
    select m.* from channel_mapping m join channel_connection c on c.org_id = p_org and c.id = m.connection_id
    where m.org_id = p_org and m.id = p_mapping and m.verified_at is not null and m.suppressed_at is null
      and c.disabled_at is null and c.channel_type = any (deliverable_channels()) and c.channel_type <> all (public_channels())
      and uses_channel(p_org, c.channel_type)),
  open as (
    select r.id, r.channels, r.escalation_level from approval_request r
    where r.org_id = p_org and r.status = 'pending' and exists (select from way)
    order by r.requested_at desc, r.id desc limit 200),
  theirs as (
    select o.id as approval_id, o.escalation_level, w.connection_id, w.channel_type, w.user_account_id, w.channel_user_id
    from way w
    join open o on o.channels is null or w.channel_type = any (o.channels)
    where exists (select from approval_deciders(p_org, o.id) d where d.id = w.user_account_id)
      -- The same hundred as everywhere.
      and (exists (select from notification n
          where n.org_id = p_org and n.approval_id = o.id and n.user_account_id = w.user_account_id)
        or (select count(distinct n.user_account_id) from notification n
          where n.org_id = p_org and n.approval_id = o.id) < 100))
  insert into notification (org_id, id, kind, approval_id, connection_id, channel_type, mapping_id, user_account_id, address,
    data, next_attempt_at, created_at)
  select p_org, new_id(), 'approval', o.approval_id, o.connection_id, o.channel_type, p_mapping, o.user_account_id,
    o.channel_user_id, jsonb_build_object('level', o.escalation_level), t.at, t.at
  from (select plane_now() as at) t cross join theirs o
  on conflict (org_id, approval_id, mapping_id) where approval_id is not null do nothing;
  get diagnostics told = row_count;
  return told;
end
$$;

-- A request changed: its messages show less than they should. What waits already keeps its place, and what was put off is due
-- now. What was given up stays so, unless a message stands somewhere that still asks: that one must not go on asking.
create or replace function raise_notifications(p_org uuid, p_approval uuid) returns void
  language sql set search_path = public, pg_temp as $$
  update notification n
  set desired_version = n.desired_version + 1, status = 'pending',
    attempts = case when n.status = 'dead' then 0 else n.attempts end,
    next_attempt_at = least(n.next_attempt_at, (select plane_now()))
  where n.org_id = p_org and n.approval_id = p_approval and n.call_id is null
    and (n.status <> 'dead' or n.sent_at is not null and (n.mapping_id is null or exists (
      select from channel_mapping m
      where m.org_id = p_org and m.id = n.mapping_id and m.verified_at is not null and m.suppressed_at is null)))
$$;

create or replace function approval_changed() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform raise_notifications(new.org_id, new.id);
  return null;
end
$$;

create or replace trigger approval_changed after update on approval_request
  for each row when (
    (old.status, old.version, old.escalation_level, old.delegated, old.reminded_at, old.approvers, old.required_clearance,
      old.quorum)
    is distinct from
    (new.status, new.version, new.escalation_level, new.delegated, new.reminded_at, new.approvers, new.required_clearance,
      new.quorum))
  execute function approval_changed();

-- One answer of several changes only what the card counts. For votes `change_approval` does this: it knows whether the request is open.
create or replace function approval_voted() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform raise_notifications(new.org_id, new.approval_id);
  return null;
end
$$;

create or replace trigger approval_voted after insert on approval_vote
  for each row when (new.answer is not null) execute function approval_voted();

-- The claim of messages that nobody sends: they only keep everybody from their lane until `taken_until`. No notifier has it.
create or replace function holding_claim() returns uuid
  language sql immutable parallel safe
  return '00000000-0000-0000-0000-000000000000'::uuid;

-- Until when a message keeps everybody from its lane; null for one that nobody has, or that somebody sends.
create or replace function held_until(n notification) returns timestamptz
  language sql immutable parallel safe
  return case when n.taken_by = holding_claim() then n.taken_until end;

-- Takes up to p_lanes lanes for a notifier, each with up to p_per_lane messages in the order in which they are due. Orgs take
-- turns (the caller names the one that was served last, and those that have their share already), and give up to p_per_org
-- lanes in a turn; within an org it begins anywhere, so that nobody is always last. Two notifiers never have one lane: whoever
-- takes from it holds its lock until commit, and looks again whether somebody took from it before. p_channels are those that
-- the notifier can speak; what is for others waits, and so does what goes over a connection that is paused.
create or replace function claim_notifications(
  p_claim uuid, p_channels text[], p_after uuid, p_full uuid[], p_lanes integer, p_per_org integer, p_per_lane integer,
  p_lease interval)
  returns table (org_id uuid, lane bigint, ids uuid[])
  language plpgsql security definer set search_path = public, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  due timestamptz := plane_now();
  at_org uuid := p_after;
  around boolean := false;
  next_org record;
  started bigint;
  at_lane bigint;
  round boolean;
  next_lane record;
  wanted integer := p_lanes;
  left_here integer;
  paused uuid[];
begin
  if not exists (select from notification n where n.next_attempt_at <= due) then
    return;
  end if;
  -- Few, and read once: nothing is looked up for each lane.
  paused := array(select c.id from channel_connection c where c.paused_until > due);
  loop
    exit when wanted = 0;
    select n.org_id as id, n.next_attempt_at as earliest into next_org from notification n
    where n.next_attempt_at is not null and n.org_id > at_org order by n.org_id, n.next_attempt_at limit 1;
    if not found or (around and next_org.id > p_after) then
      exit when around;
      around := true;
      at_org := '00000000-0000-0000-0000-000000000000';
      continue;
    end if;
    at_org := next_org.id;
    continue when next_org.earliest > due or at_org = any (p_full);
    left_here := least(p_per_org, wanted);
    started := hashtextextended(gen_random_uuid()::text, 2);
    at_lane := started;
    round := false;
    while left_here > 0 loop
      -- Channel by channel: a burst to one of the others is not walked through. Rows are compared as a whole, and the planner is kept from
      -- guessing how many are paused, so that only their index can answer.
      select f.lane, f.next_attempt_at as earliest into next_lane from unnest(p_channels) k (channel)
      cross join lateral (
        select n.org_id, n.channel_type, n.lane, n.next_attempt_at from notification n
        where (n.org_id, n.channel_type, n.lane) > (at_org, k.channel, at_lane) and n.next_attempt_at is not null
          and case when n.connection_id = any (paused) then false else true end
        order by n.org_id, n.channel_type, n.lane, n.next_attempt_at limit 1) f
      where f.org_id = at_org and f.channel_type = k.channel
      order by f.lane, f.next_attempt_at limit 1;
      if not found or (round and next_lane.lane > started) then
        exit when round;
        round := true;
        at_lane := -9223372036854775808;
        continue;
      end if;
      at_lane := next_lane.lane;
      continue when next_lane.earliest > due;
      continue when exists (
        select from notification n where n.org_id = at_org and n.lane = at_lane and n.taken_until > due);
      continue when not pg_try_advisory_xact_lock(at_lane);
      -- A statement of its own: it sees what was committed before the lock was free.
      continue when exists (
        select from notification n where n.org_id = at_org and n.lane = at_lane and n.taken_until > due);
      -- What somebody changes at this moment is not waited for, and nothing overtakes it either.
      with first as (
        -- Rows are compared as a whole so that only the index of lanes can answer: any other would walk through what
        -- is due in other lanes.
        select n.id, n.next_attempt_at, n.seq from notification n
        where n.org_id = at_org and n.next_attempt_at is not null
          and (n.lane, n.next_attempt_at) >= (at_lane, '-infinity') and (n.lane, n.next_attempt_at) <= (at_lane, due)
        order by n.lane, n.next_attempt_at, n.seq limit p_per_lane),
      free as (
        select n.id from notification n
        where n.org_id = at_org and n.id in (select f.id from first f) and n.next_attempt_at <= due
        for no key update skip locked),
      ahead as (
        select f.id, f.next_attempt_at, f.seq,
          bool_and(e.id is not null) over (order by f.next_attempt_at, f.seq) as reachable
        from first f left join free e on e.id = f.id)
      select array_agg(a.id order by a.next_attempt_at, a.seq) into ids from ahead a where a.reachable;
      continue when ids is null;
      update notification n set taken_by = p_claim, taken_until = due + p_lease
      where n.org_id = at_org and n.id = any (ids);
      org_id := at_org;
      lane := at_lane;
      return next;
      wanted := wanted - 1;
      left_here := left_here - 1;
    end loop;
  end loop;
end
$$;

call pg_temp.give_functions('cortex_scheduler', 'claim_notifications(uuid,text[],uuid,uuid[],integer,integer,integer,interval)');

-- Renew the row of a notifier, and count those that are alive, itself included.
create or replace function count_notifiers(p_id uuid, p_life interval) returns integer
  language plpgsql set search_path = public, pg_temp as $$
begin
  insert into notifier (id, expires_at) values (p_id, plane_now() + p_life)
  on conflict (id) do update set expires_at = excluded.expires_at;
  delete from notifier n where n.id in (
    select o.id from notifier o where o.expires_at < (select plane_now()) for update skip locked);
  return (select count(*) from notifier);
end
$$;

-- They are written down together now.
drop function if exists record_delivery(uuid, uuid, uuid, integer, boolean, boolean, text, jsonb, jsonb, jsonb, text[], bytea[]);

-- What was sent is written down, by whoever still has it, and what comes next in its lane is begun with the same commit. p_actions and
-- p_bodies are null except where the request tells that it reached somebody; p_sent is false where there was nothing new to say.
-- p_next: null, or what is to be begun if it is still to say what p_next_versions says, to somebody who is still there.
-- Of each it returns whether it was written down (false: somebody else took it over; null: it must be tried again alone), and
-- whether the next was begun. Several wait for nobody: whoever waited for one while holding another could wait for somebody who
-- ends both their requests. p_wait is for one alone, and begins nothing.
create or replace function record_deliveries(
  p_org uuid, p_wait boolean, p_lease interval, p_ids uuid[], p_claims uuid[], p_versions integer[], p_sent boolean[], p_refs text[],
  p_shown jsonb[], p_said jsonb[], p_payloads jsonb[], p_actions text[], p_bodies bytea[], p_next uuid[], p_next_versions integer[])
  returns table (recorded boolean, begun boolean)
  language plpgsql set search_path = public, pg_temp as $$
declare
  at timestamptz := plane_now();
  kept record;
  request record;
  records boolean[] := array_fill(null::boolean, array[cardinality(p_ids)]);
  starts boolean[] := array_fill(false, array[cardinality(p_ids)]);
  heads uuid[] := '{}';
  -- What is changed: messages, with the number of the item that was sent, null where the message is begun.
  messages uuid[] := '{}';
  numbers integer[] := '{}';
  -- What is told: of each item its number, request, channel, chain (of its session; of the org, where it has none) and job.
  trail integer[] := '{}';
  requests uuid[] := '{}';
  ways text[] := '{}';
  chains uuid[] := '{}';
  jobs uuid[] := '{}';
  news uuid[] := '{}';
  -- Connections whose last message is noted, once a minute.
  stale uuid[] := '{}';
  the_chain uuid;
begin
  perform set_config('app.org_id', p_org::text, true);
  for i in 1 .. cardinality(p_ids) loop
    select n.approval_id, n.connection_id, n.channel_type, c.failing_since is not null or c.failures > 0 as failing,
      coalesce(c.last_outbound_at < at - interval '1 minute', true) as is_stale into kept
    from notification n join channel_connection c on c.org_id = p_org and c.id = n.connection_id
    where n.org_id = p_org and n.id = p_ids[i] and n.taken_by = p_claims[i];
    if not found then
      records[i] := false;
      continue;
    end if;
    -- In the order of everybody who changes a request: the request, its messages, and the head of its session at last.
    if p_wait then
      if p_actions[i] is not null then
        select coalesce(r.session_id, p_org) as chain, r.job_id, r.status, r.channels_dispatched into request
        from approval_request r where r.org_id = p_org and r.id = kept.approval_id for no key update;
      end if;
      perform from notification n where n.org_id = p_org and n.id = p_ids[i] and n.taken_by = p_claims[i] for no key update;
      if not found then
        records[i] := false;
        continue;
      end if;
      if p_sent[i] and kept.failing then
        -- A pause that somebody got meanwhile holds for what was on its way already, too.
        update channel_connection c set failing_since = null, failures = 0, last_outbound_at = at,
          paused_until = case when c.paused_until > at then c.paused_until end,
          pause_reason = case when c.paused_until > at then c.pause_reason end
        where c.org_id = p_org and c.id = kept.connection_id;
      end if;
    else
      -- A connection that comes back is told so, for which it is locked.
      continue when p_sent[i] and kept.failing;
      if p_actions[i] is not null then
        select coalesce(r.session_id, p_org) as chain, r.job_id, r.status, r.channels_dispatched into request
        from approval_request r where r.org_id = p_org and r.id = kept.approval_id for no key update skip locked;
        continue when not found;
        if not request.chain = any (heads) then
          if request.chain = p_org then
            perform from org_head h where h.org_id = p_org for update skip locked;
          else
            perform from session_head h where h.org_id = p_org and h.session_id = request.chain for update skip locked;
          end if;
          continue when not found;
          heads := heads || request.chain;
        end if;
      end if;
      perform from notification n
      where n.org_id = p_org and n.id = p_ids[i] and n.taken_by = p_claims[i] for no key update skip locked;
      continue when not found;
      -- A lease that is not young any more is renewed by whoever prepares it anew.
      perform from notification n
      where n.org_id = p_org and n.id = p_next[i] and n.taken_by = p_claims[i] and n.desired_version = p_next_versions[i]
        and n.taken_until > at + p_lease * 0.9
        and not exists (select from channel_connection c
          where c.org_id = p_org and c.id = n.connection_id and c.disabled_at is not null)
        and not exists (select from user_account u
          where u.org_id = p_org and u.id = n.user_account_id and u.deactivated_at is not null)
        and (n.mapping_id is null or exists (select from channel_mapping m
          where m.org_id = p_org and m.id = n.mapping_id and m.verified_at is not null and m.removed_at is null
            and m.suppressed_at is null))
      for no key update of n skip locked;
      if found then
        messages := messages || p_next[i];
        numbers := numbers || null::integer;
        starts[i] := true;
      end if;
    end if;
    messages := messages || p_ids[i];
    numbers := numbers || i;
    records[i] := true;
    if p_sent[i] and kept.is_stale and not kept.failing and not kept.connection_id = any (stale) then
      stale := stale || kept.connection_id;
    end if;
    if p_actions[i] is not null then
      trail := trail || i;
      requests := requests || kept.approval_id;
      ways := ways || kept.channel_type;
      chains := chains || request.chain;
      jobs := jobs || request.job_id;
      if request.status = 'pending' and not kept.channel_type = any (request.channels_dispatched) then
        news := news || kept.approval_id;
      end if;
    end if;
  end loop;
  -- One statement for all: each reads the constraints of the table anew.
  update notification n
  set tried_at = case when t.i is null then coalesce(n.tried_at, at) else n.tried_at end,
    attempts = case when t.i is null then n.attempts + 1 else 0 end,
    rendered_version = coalesce(p_versions[t.i], n.rendered_version), said = coalesce(p_said[t.i], n.said),
    last_error = case when t.i is null then n.last_error end,
    status = case when n.desired_version = p_versions[t.i] then 'delivered' else 'pending' end,
    next_attempt_at = case when t.i is null then n.next_attempt_at when n.desired_version <> p_versions[t.i] then at end,
    message_ref = case when p_sent[t.i] then coalesce(p_refs[t.i], n.message_ref) else n.message_ref end,
    shown = case when p_sent[t.i] then p_shown[t.i] else n.shown end,
    sent_at = case when p_sent[t.i] then at else n.sent_at end,
    taken_by = case when t.i is null then n.taken_by end, taken_until = case when t.i is null then n.taken_until end
  from unnest(messages, numbers) t (id, i)
  where n.org_id = p_org and n.id = any (messages) and n.id = t.id;
  if cardinality(stale) > 0 then
    update channel_connection c set last_outbound_at = at
    where c.org_id = p_org and c.id in (
      select o.id from channel_connection o where o.org_id = p_org and o.id = any (stale)
      order by o.id for no key update skip locked);
  end if;
  if cardinality(news) > 0 then
    update approval_request r
    set channels_dispatched = r.channels_dispatched || array(
      select distinct t.channel from unnest(requests, ways) t (request, channel)
      where t.request = r.id and not t.channel = any (r.channels_dispatched))
    where r.org_id = p_org and r.id = any (news);
  end if;
  if cardinality(trail) > 0 then
    insert into approval_event (org_id, approval_id, event_type, channel, payload, created_at)
    select p_org, t.request, 'dispatched', t.channel, p_payloads[t.i], at
    from unnest(trail, requests, ways) t (i, request, channel);
  end if;
  -- The chain of the org comes last, as everywhere.
  for the_chain in select d.c from (select distinct c from unnest(chains) c) d order by d.c = p_org, d.c loop
    if the_chain = p_org then
      perform org_append(p_org, array(select p_actions[t.i] from unnest(trail, chains) t (i, chain) where t.chain = the_chain),
        array(select p_bodies[t.i] from unnest(trail, chains) t (i, chain) where t.chain = the_chain));
    else
      perform session_append(p_org, the_chain, 0, '{}', '{}', '{}',
        array(select p_actions[t.i] from unnest(trail, chains) t (i, chain) where t.chain = the_chain),
        array(select p_bodies[t.i] from unnest(trail, chains) t (i, chain) where t.chain = the_chain),
        array(select t.job from unnest(jobs, chains) t (job, chain) where t.chain = the_chain));
    end if;
  end loop;
  return query select * from unnest(records, starts);
end
$$;

-- A connection was disabled because its vendor took it away: everybody who steers jobs is told on their other
-- addresses. At most a hundred people.
create or replace function report_connection(p_org uuid, p_connection uuid, p_reason text) returns void
  language sql set search_path = public, pg_temp as $$
  insert into notification (org_id, id, kind, connection_id, channel_type, mapping_id, user_account_id, address, data,
    next_attempt_at, created_at)
  select p_org, new_id(), 'alert', m.connection_id, m.channel_type, m.id, u.id, m.channel_user_id,
    jsonb_build_object('alert', 'connection_disabled', 'connection_id', b.id, 'connection', b.name, 'message', left(p_reason, 500)),
    t.at, t.at
  from (select plane_now() as at) t
  join channel_connection b on b.org_id = p_org and b.id = p_connection
  cross join lateral (
    select p.id from user_account p
    where p.org_id = p_org and p.deactivated_at is null and p.roles && array['operator', 'admin']
    order by p.id limit 100) u
  join channel_mapping m on m.org_id = p_org and m.user_account_id = u.id
  join channel_connection c on c.org_id = p_org and c.id = m.connection_id
  where m.verified_at is not null and m.suppressed_at is null and c.disabled_at is null
    and c.channel_type = any (deliverable_channels()) and c.channel_type <> all (public_channels())
$$;
