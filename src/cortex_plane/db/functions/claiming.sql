-- Claims: which job next, across orgs. Orgs take turns (the caller names the one that was served last); within an
-- org what was begun goes before what is new, and an agent at its limit is passed over. Each agent's limit is exact:
-- whoever claims for an agent holds its lock until commit, so nobody counts what another is about to add. So is the limit of
-- an org in the whole plane, where there is one.
--
-- A worker's slots are shared: an org has at most p_share of them, and the last p_reserve are for orgs that run nothing on this
-- worker. p_held names the org of each job that the worker runs now.
--
-- A search ends when it has been around once: whoever stopped earlier would look at the same ones next time, and what
-- lies behind them would never run. Planning a hop takes ten times as long as making it, so the plans are kept.

-- The orgs that have due work, in turn: those after p_after first. Looking for it costs the same however many orgs wait for a later
-- time: where little is due it is all read, and where much is due an org that only waits costs a look into the index.
-- p_skip: orgs that are passed over.
create or replace function find_orgs_in_turn(p_apps text[], p_due timestamptz, p_after uuid, p_skip uuid[], p_limit integer)
  returns uuid[]
  language plpgsql security definer set search_path = public, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  few constant integer := 16;
  none constant uuid := '00000000-0000-0000-0000-000000000000';
  orgs uuid[];
begin
  orgs := array(
    select j.org_id from unnest(p_apps) a (app) cross join lateral (
      select j.org_id from job j
      where j.app = a.app and j.runnable_at <= p_due
      order by j.runnable_at limit few) j
    limit few);
  if orgs = '{}' then
    return orgs;
  elsif cardinality(orgs) < few then
    if orgs[1] = all (orgs) then
      return case when orgs[1] = any (p_skip) then '{}' else orgs[1:1] end;
    end if;
    return array(
      select o from (select distinct o from unnest(orgs) o) o (o)
      where o <> all (p_skip) order by o <= p_after, o limit p_limit);
  end if;
  -- From one org to the next in the index, to the end, and from the beginning to where it started.
  return array(
    with recursive hops (org_id, has_wrapped, is_org) as (
      select p_after, false, false
      union all
      select coalesce(next.org_id, none), h.has_wrapped or next.org_id is null, next.org_id is not null
      from hops h cross join lateral (
        select (
          select q.org_id from unnest(p_apps) a (app) cross join lateral (
            select j.org_id from job j
            where j.app = a.app and j.runnable_at is not null and j.org_id > h.org_id
            order by j.org_id limit 1) q
          order by q.org_id limit 1) as org_id) next
      where not h.has_wrapped or next.org_id <= p_after)
    select h.org_id from hops h
    -- In the order of the index of queues: that of what is due would lead through all orgs.
    where h.is_org and h.org_id <> all (p_skip) and exists (
      select from unnest(p_apps) a (app) cross join lateral (
        select from job j where j.app = a.app and j.org_id = h.org_id and j.runnable_at <= p_due
        order by j.agent_id, j.queue, j.runnable_at limit 1) j)
    limit p_limit);
end
$$;

-- Up to p_most jobs of one org, locked; what was begun first, then by time. busy: others were claiming the rest.
create or replace function find_jobs_of_org(
  p_org uuid, p_apps text[], p_due timestamptz, p_most integer, p_org_jobs integer, out ids uuid[], out busy boolean)
  language plpgsql security definer set search_path = public, pg_temp set plan_cache_mode = force_generic_plan as $$
declare
  waiting record;
  allowed integer;
  running integer;
  free integer := p_most;
  more uuid[];
  agents uuid[] := '{}';
  found_before integer;
begin
  ids := '{}';
  busy := false;
  if p_org_jobs is not null then
    select count(*) into running from job j where j.org_id = p_org and j.worker_id is not null;
    if running >= p_org_jobs then
      return;
    end if;
    -- As for an agent below: only an org that may have room is worth a lock, and then it is counted again.
    if not pg_try_advisory_xact_lock(hashtextextended(p_org::text, 2)) then
      busy := true;
      return;
    end if;
    select count(*) into running from job j where j.org_id = p_org and j.worker_id is not null;
    free := least(free, p_org_jobs - running);
  end if;
  for waiting in
    with recursive queues (app, agent_id) as (
      select a.app, (
        select j.agent_id from job j
        where j.app = a.app and j.org_id = p_org and j.runnable_at is not null
        order by j.agent_id limit 1)
      from unnest(p_apps) a (app)
      union all
      select q.app, (
        select j.agent_id from job j
        where j.app = q.app and j.org_id = p_org and j.runnable_at is not null and j.agent_id > q.agent_id
        order by j.agent_id limit 1)
      from queues q where q.agent_id is not null)
    select q.app, q.agent_id, first.queue,
      -- As far as the first job of the next queue, which goes before the rest of this one.
      case when lead(first.queue) over turns = first.queue then lead(first.runnable_at) over turns else p_due end as until
    from queues q cross join lateral (
      (select 0 as queue, j.runnable_at from job j
       where j.app = q.app and j.org_id = p_org and j.agent_id = q.agent_id and j.queue = 0 and j.runnable_at <= p_due
       order by j.runnable_at limit 1)
      union all
      (select 1, j.runnable_at from job j
       where j.app = q.app and j.org_id = p_org and j.agent_id = q.agent_id and j.queue = 1 and j.runnable_at <= p_due
       order by j.runnable_at limit 1)) first
    where q.agent_id is not null
    window turns as (order by first.queue, first.runnable_at)
    order by first.queue, first.runnable_at
  loop
    exit when free <= 0;
    -- What this search has found already is not leased yet.
    found_before := coalesce(cardinality(array_positions(agents, waiting.agent_id)), 0);
    select coalesce((v.resource_limits ->> 'max_concurrent_jobs')::integer, 5) - found_before into allowed
    from agent g join agent_version v
      on v.org_id = g.org_id and v.agent_id = g.id and v.version = g.config_version
    where g.org_id = p_org and g.id = waiting.agent_id and (
      select count(*) from job j
      where j.org_id = p_org and j.agent_id = waiting.agent_id and j.worker_id is not null)
      < coalesce((v.resource_limits ->> 'max_concurrent_jobs')::integer, 5) - found_before;
    continue when not found;
    -- Only who may have room is worth a lock, and then it is counted again: nobody else can add to it now.
    if not pg_try_advisory_xact_lock(hashtextextended(waiting.agent_id::text, 1)) then
      busy := true;
      continue;
    end if;
    more := array(
      select j.id from job j
      where j.app = waiting.app and j.org_id = p_org and j.agent_id = waiting.agent_id
        and j.queue = waiting.queue and j.runnable_at <= waiting.until
      order by j.runnable_at limit (
        select greatest(0, least(free, allowed - count(*))) from job r
        where r.org_id = p_org and r.agent_id = waiting.agent_id and r.worker_id is not null)
      for no key update skip locked);
    if more = '{}' then
      -- Somebody holds its first job, and the ones behind that do not wait for it; or has just taken the last place.
      busy := true;
      more := array(
        select j.id from job j
        where j.app = waiting.app and j.org_id = p_org and j.agent_id = waiting.agent_id
          and j.queue = waiting.queue and j.runnable_at <= p_due
        order by j.runnable_at limit (
          select greatest(0, least(1, allowed - count(*))) from job r
          where r.org_id = p_org and r.agent_id = waiting.agent_id and r.worker_id is not null)
        for no key update skip locked);
    end if;
    ids := ids || more;
    agents := agents || array_fill(waiting.agent_id, array[cardinality(more)]);
    free := free - cardinality(more);
  end loop;
end
$$;

-- Jobs whose worker is dead: found here, taken over one by one under their own org.
create or replace function find_orphans(p_limit integer)
  returns table (org_id uuid, id uuid, worker_id uuid, worker text, epoch bigint, deaths integer, cancelled boolean,
    held boolean, stopped boolean)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select j.org_id, j.id, j.worker_id, w.name, j.epoch, j.deaths, j.cancel_requested_at is not null, j.holds <> '{}',
    w.stopped_at is not null
  from worker w join job j on j.worker_id = w.id
  where w.expires_at < (select plane_now())
  limit p_limit
$$;

-- What the database thinks that a worker runs.
create or replace function find_leased(p_worker uuid)
  returns table (org_id uuid, id uuid, epoch bigint, hand_backs integer)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select j.org_id, j.id, j.epoch, j.hand_backs from job j where j.worker_id = p_worker
$$;

-- Which of a worker's jobs somebody wants to stop.
create or replace function find_cancelled(p_worker uuid) returns table (org_id uuid, id uuid)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select j.org_id, j.id from job j where j.worker_id = p_worker and j.cancel_requested_at is not null
$$;

-- Which jobs of a worker still run and should hold within p_ahead, and in how many seconds.
drop function if exists find_overdue(uuid);
drop function if exists find_overdue(uuid, interval);
create or replace function find_overdue(p_worker uuid, p_ahead interval)
  returns table (org_id uuid, id uuid, seconds double precision)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select j.org_id, j.id, extract(epoch from (j.pause ->> 'hold_by')::timestamptz - (select plane_now()))::double precision
  from job j
  where j.worker_id = p_worker and j.holds <> '{}' and (j.pause ->> 'hold_by')::timestamptz <= (select plane_now()) + p_ahead
$$;

call pg_temp.give_functions('cortex_claimer',
  'find_orgs_in_turn(text[], timestamptz, uuid, uuid[], integer)',
  'find_jobs_of_org(uuid, text[], timestamptz, integer, integer)', 'find_orphans(integer)', 'find_leased(uuid)',
  'find_cancelled(uuid)', 'find_overdue(uuid, interval)');

-- Lease up to p_wanted jobs to a worker with so many free slots: in each round the orgs that have work get the same number, so
-- that it is as if they took turns. A last row without a job says that others were claiming at the same moment.
--
-- However many jobs of an org are claimed, each statement runs once for it. A lateral part with a limit finds each row by its key,
-- whatever the planner thinks of the table: without statistics it would read all rows of the org, and plans are kept.
create or replace function claim_jobs(
  p_worker uuid, p_apps text[], p_wanted integer, p_after uuid, p_held uuid[], p_share integer, p_reserve integer,
  p_org_jobs integer)
  returns table (
    org_id uuid, job_id uuid, session_id uuid, agent_id uuid, agent_version integer, kind text, app text,
    payload jsonb, checkpoint text, checkpoint_mac bytea, epoch bigint, write_seq bigint, retry_count integer,
    max_retries integer, running_seconds double precision, model_config jsonb, skill_config jsonb,
    resource_limits jsonb, message_seq bigint, now timestamptz, agent text, teams uuid[], session_kind text,
    policies text, request_policies jsonb, waited_seconds double precision, bound jsonb,
    hand_backs integer)
  language plpgsql set search_path = public, pg_temp set plan_cache_mode = force_generic_plan
  set enable_hashjoin = off set enable_mergejoin = off set enable_material = off as $$
#variable_conflict use_column
declare
  at_once constant integer := greatest(p_wanted, 64);
  free integer := p_wanted;
  due timestamptz := plane_now();
  at_org uuid := p_after;
  held uuid[] := p_held;
  before integer;
  skip uuid[] := '{}';
  orgs uuid[];
  org uuid;
  only_org uuid;
  slots integer;
  most integer;
  room integer;
  ids uuid[];
  is_busy boolean;
  others boolean := false;
  of_org text;
  waits double precision[];
  new_sessions uuid[];
  new_jobs uuid[];
  started_orgs uuid[] := '{}';
  started_sessions uuid[] := '{}';
  started_jobs uuid[] := '{}';
begin
  -- Only a worker that is known can be found dead: a job of any other would be leased for good.
  select w.claims_for into only_org from worker w
  where w.id = p_worker and w.expires_at > (select plane_now()) and w.stopped_at is null;
  if not found then
    raise exception using errcode = 'CX409', detail = 'lease_expired',
      message = 'The lease of this worker has run out.', hint = 'It claims again after its next heartbeat.';
  end if;
  while free > 0 loop
    -- A worker of one org looks at no other.
    orgs := case when only_org is null then find_orgs_in_turn(p_apps, due, at_org, skip, at_once)
      when only_org = any (skip) then '{}' else array[only_org] end;
    exit when orgs = '{}';
    before := free;
    most := greatest(1, (free - p_reserve) / least(free, cardinality(orgs)));
    foreach org in array orgs loop
      exit when free = 0;
      slots := coalesce(cardinality(array_positions(held, org)), 0);
      -- The last slots of a worker are for orgs that run nothing on it.
      room := least(most, p_share - slots, greatest(free - p_reserve, (slots = 0)::integer));
      if room <= 0 then
        skip := skip || org;
        continue;
      end if;
      select f.ids, f.busy into ids, is_busy from find_jobs_of_org(org, p_apps, due, room, p_org_jobs) f;
      others := others or is_busy;
      if cardinality(ids) < room then
        -- What is left of it cannot be claimed now.
        skip := skip || org;
        continue when ids = '{}';
      end if;
      at_org := org;
      free := free - cardinality(ids);
      held := held || array_fill(org, array[cardinality(ids)]);
      of_org := set_config('app.org_id', org::text, true);
      now := plane_now();
      select array_agg(case when j.epoch > 0 then extract(epoch from now - j.runnable_at)::double precision end order by f.number),
        coalesce(array_agg(j.session_id) filter (where j.status <> 'RUNNING'), '{}'),
        coalesce(array_agg(j.id) filter (where j.status <> 'RUNNING'), '{}')
      into waits, new_sessions, new_jobs
      from unnest(ids) with ordinality f (id, number)
      cross join lateral (select * from job j where j.org_id = org and j.id = f.id limit 1) j;
      if new_jobs <> '{}' then
        started_orgs := started_orgs || array_fill(org, array[cardinality(new_jobs)]);
        started_sessions := started_sessions || new_sessions;
        started_jobs := started_jobs || new_jobs;
      end if;
      policies := policies_version(org);
      return query
        with leased as (
          update job j
          set status = 'RUNNING', worker_id = p_worker, epoch = j.epoch + 1, write_seq = 0, leased_at = now,
            runnable_at = null, next_retry_at = null, wake_at = null
          from unnest(ids, waits) with ordinality f (id, waited, number)
          cross join lateral (select k.ctid from job k where k.org_id = org and k.id = f.id limit 1) k
          where j.ctid = k.ctid
          returning j.*, f.waited, f.number)
        select j.org_id, j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.payload,
          whole_checkpoint(j.checkpoint, j.memory)::text, j.checkpoint_mac, j.epoch, j.write_seq, j.retry_count, j.max_retries,
          j.running_seconds, v.model_config,
          -- Beside the settings, so that a worker of the release before reads the rest as it is.
          case when s.context <> '{}' or a.repeats_steps then v.skill_config || jsonb_build_object('$plane',
            jsonb_build_object('session_context', s.context, 'repeats_steps', a.repeats_steps)) else v.skill_config end,
          v.resource_limits, h.message_seq, now,
          a.slug, array_remove(array[t.id, t.parent_id], null), s.kind, claim_jobs.policies, j.policies, j.waited,
          case when exists (select from session_atlas b where b.org_id = j.org_id and b.session_id = j.session_id)
            then session_bound(j.org_id, j.session_id) end, j.hand_backs
        from leased j
        join agent a on a.org_id = j.org_id and a.id = j.agent_id
        join team t on t.org_id = a.org_id and t.id = a.team_id
        join session s on s.org_id = j.org_id and s.id = j.session_id
        join agent_version v on v.org_id = j.org_id and v.agent_id = j.agent_id and v.version = j.agent_version
        join session_head h on h.org_id = j.org_id and h.session_id = j.session_id
        order by j.number;
    end loop;
    if free = before then
      -- None of them can be served now: the search goes on behind them.
      at_org := orgs[cardinality(orgs)];
    end if;
    exit when cardinality(orgs) < at_once and orgs <@ skip;
  end loop;
  if others and free > 0 then
    return query select null::uuid, null::uuid, null::uuid, null::uuid, null::integer, null::text, null::text,
      null::jsonb, null::text, null::bytea, null::bigint, null::bigint, null::integer, null::integer,
      null::double precision, null::jsonb, null::jsonb, null::jsonb, null::bigint, plane_now(),
      null::text, null::uuid[], null::text, null::text, null::jsonb, null::double precision, null::jsonb, null::integer;
  end if;
  -- Heads last, and in one order: two claims may meet in the same sessions.
  for org, new_sessions, new_jobs in
    select m.org, array_agg(m.session), array_agg(m.job)
    from unnest(started_orgs, started_sessions, started_jobs) m (org, session, job) group by m.org order by m.org
  loop
    of_org := set_config('app.org_id', org::text, true);
    perform sessions_append(org, new_sessions, new_jobs, 'status', '{"status": "RUNNING"}');
  end loop;
end
$$;
