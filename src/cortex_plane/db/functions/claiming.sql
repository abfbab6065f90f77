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

-- p_full: orgs that are passed over. p_org_jobs: how many jobs of one org may run in the plane; null is no limit.
create or replace function find_next_job(p_apps text[], p_after uuid, p_full uuid[], p_org_jobs integer)
  returns table (org_id uuid, id uuid, busy boolean)
  language plpgsql security definer set search_path = public, pg_temp set plan_cache_mode = force_generic_plan as $$
#variable_conflict use_column
declare
  due timestamptz := plane_now();
  at_org uuid := p_after;
  next_org uuid;
  wrapped boolean := false;
  waiting record;
  allowed integer;
  running integer;
begin
  busy := false;
  loop
    select q.org_id into next_org
    from unnest(p_apps) a (app) cross join lateral (
      select j.org_id from job j
      where j.app = a.app and j.runnable_at is not null and j.org_id > at_org
      order by j.org_id limit 1) q
    order by q.org_id limit 1;
    if next_org is null or (wrapped and next_org > p_after) then
      exit when wrapped;
      wrapped := true;
      at_org := '00000000-0000-0000-0000-000000000000';
      continue;
    end if;
    at_org := next_org;
    continue when next_org = any (p_full);
    if p_org_jobs is not null then
      select count(*) into running from job j where j.org_id = next_org and j.worker_id is not null;
      continue when running >= p_org_jobs;
      -- As for an agent below: only an org that may have room is worth a lock, and then it is counted again.
      if not pg_try_advisory_xact_lock(hashtextextended(next_org::text, 2)) then
        busy := true;
        continue;
      end if;
      select count(*) into running from job j where j.org_id = next_org and j.worker_id is not null;
      continue when running >= p_org_jobs;
    end if;
    for waiting in
      with recursive queues (app, agent_id) as (
        select a.app, (
          select j.agent_id from job j
          where j.app = a.app and j.org_id = next_org and j.runnable_at is not null
          order by j.agent_id limit 1)
        from unnest(p_apps) a (app)
        union all
        select q.app, (
          select j.agent_id from job j
          where j.app = q.app and j.org_id = next_org and j.runnable_at is not null and j.agent_id > q.agent_id
          order by j.agent_id limit 1)
        from queues q where q.agent_id is not null)
      select q.app, q.agent_id, first.queue, first.runnable_at
      from queues q cross join lateral (
        (select 0 as queue, j.runnable_at from job j
         where j.app = q.app and j.org_id = next_org and j.agent_id = q.agent_id and j.queue = 0
           and j.runnable_at <= due
         order by j.runnable_at limit 1)
        union all
        (select 1, j.runnable_at from job j
         where j.app = q.app and j.org_id = next_org and j.agent_id = q.agent_id and j.queue = 1
           and j.runnable_at <= due
         order by j.runnable_at limit 1)) first
      where q.agent_id is not null
      order by first.queue, first.runnable_at
    loop
      select coalesce((v.resource_limits ->> 'max_concurrent_jobs')::integer, 5) into allowed
      from agent g join agent_version v
        on v.org_id = g.org_id and v.agent_id = g.id and v.version = g.config_version
      where g.org_id = next_org and g.id = waiting.agent_id;
      select count(*) into running from job j
      where j.org_id = next_org and j.agent_id = waiting.agent_id and j.worker_id is not null;
      continue when running >= allowed;
      -- Only who may have room is worth a lock, and then it is counted again: nobody else can add to it now.
      if not pg_try_advisory_xact_lock(hashtextextended(waiting.agent_id::text, 1)) then
        busy := true;
        continue;
      end if;
      select count(*) into running from job j
      where j.org_id = next_org and j.agent_id = waiting.agent_id and j.worker_id is not null;
      continue when running >= allowed;
      select j.id into id from job j
      where j.app = waiting.app and j.org_id = next_org and j.agent_id = waiting.agent_id
        and j.queue = waiting.queue and j.runnable_at <= due
      order by j.runnable_at limit 1
      for no key update skip locked;
      if found then
        org_id := next_org;
        return next;
        return;
      end if;
      busy := true;
    end loop;
  end loop;
  org_id := null;
  id := null;
  if busy then
    return next;
  end if;
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

call pg_temp.give_functions('cortex_claimer',
  'find_next_job(text[], uuid, uuid[], integer)', 'find_orphans(integer)', 'find_leased(uuid)', 'find_cancelled(uuid)');

-- Which orgs get no slot now: those with their share, and those with any where only the reserve is left.
create or replace function full_orgs(p_held uuid[], p_free integer, p_share integer, p_reserve integer) returns uuid[]
  language sql immutable parallel safe set search_path = public, pg_temp as $$
  select coalesce(array_agg(h.org), '{}') from (
    select org, count(*) as slots from unnest(p_held) org group by org) h
  where h.slots >= p_share or p_free <= p_reserve
$$;

-- Lease up to p_wanted jobs to a worker with so many free slots. A last row without a job says that others were claiming at
-- the same moment.
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
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  found_job record;
  claimed record;
  at_org uuid := p_after;
  held uuid[] := p_held;
  moved record;
  moves jsonb[] := '{}';
begin
  -- Only a worker that is known can be found dead: a job of any other would be leased for good.
  if not exists (
    select from worker w where w.id = p_worker and w.expires_at > (select plane_now()) and w.stopped_at is null) then
    raise exception using errcode = 'CX409', detail = 'lease_expired',
      message = 'The lease of this worker has run out.', hint = 'It claims again after its next heartbeat.';
  end if;
  for turn in 1 .. p_wanted loop
    select * into found_job
    from find_next_job(p_apps, at_org, full_orgs(held, p_wanted - turn + 1, p_share, p_reserve), p_org_jobs);
    exit when not found;
    if found_job.id is null then
      return query select null::uuid, null::uuid, null::uuid, null::uuid, null::integer, null::text, null::text,
        null::jsonb, null::text, null::bytea, null::bigint, null::bigint, null::integer, null::integer,
        null::double precision, null::jsonb, null::jsonb, null::jsonb, null::bigint, plane_now(),
        null::text, null::uuid[], null::text, null::text, null::jsonb, null::double precision, null::jsonb, null::integer;
      exit;
    end if;
    at_org := found_job.org_id;
    held := held || at_org;
    perform set_config('app.org_id', at_org::text, true);
    now := plane_now();
    select j.session_id, j.status,
      case when j.epoch > 0 then extract(epoch from now - j.runnable_at)::double precision end as waited
    into moved from job j where j.org_id = at_org and j.id = found_job.id;
    if moved.status = 'RUNNING' then
      update job j
      set worker_id = p_worker, epoch = j.epoch + 1, write_seq = 0, leased_at = now, runnable_at = null
      where j.org_id = at_org and j.id = found_job.id;
    else
      update job j
      set status = 'RUNNING', worker_id = p_worker, epoch = j.epoch + 1, write_seq = 0, leased_at = now,
        runnable_at = null, next_retry_at = null, wake_at = null
      where j.org_id = at_org and j.id = found_job.id;
      moves := moves || jsonb_build_object('org', at_org, 'session', moved.session_id, 'job', found_job.id);
    end if;
    return query
      select j.org_id, j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.payload,
        j.checkpoint::text, j.checkpoint_mac, j.epoch, j.write_seq, j.retry_count, j.max_retries, j.running_seconds,
        v.model_config, v.skill_config, v.resource_limits, h.message_seq, now,
        a.slug, array_remove(array[t.id, t.parent_id], null), s.kind, policies_version(j.org_id), j.policies, moved.waited,
        case when exists (select from session_atlas b where b.org_id = j.org_id and b.session_id = j.session_id)
          then session_bound(j.org_id, j.session_id) end, j.hand_backs
      from job j
      join agent a on a.org_id = j.org_id and a.id = j.agent_id
      join team t on t.org_id = a.org_id and t.id = a.team_id
      join session s on s.org_id = j.org_id and s.id = j.session_id
      join agent_version v on v.org_id = j.org_id and v.agent_id = j.agent_id and v.version = j.agent_version
      join session_head h on h.org_id = j.org_id and h.session_id = j.session_id
      where j.org_id = at_org and j.id = found_job.id;
  end loop;
  -- Heads last, and in one order: two claims may meet in the same sessions.
  for moved in
    select (m ->> 'org')::uuid as org, (m ->> 'session')::uuid as session, (m ->> 'job')::uuid as job
    from unnest(moves) m order by m ->> 'session', m ->> 'job'
  loop
    perform set_config('app.org_id', moved.org::text, true);
    perform session_append(moved.org, moved.session, 0, array['status'], array[moved.job],
      array[jsonb_build_object('status', 'RUNNING')], '{}', '{}');
  end loop;
end
$$;
