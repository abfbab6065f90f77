-- The life of a worker: one row, renewed by its heartbeat. Who has not renewed it in time is dead.

-- It takes an org too.
drop function if exists register_worker(uuid, text, text, integer, text[], integer, interval);

-- p_org: the one org whose jobs it claims; null: those of all.
create or replace function register_worker(
  p_id uuid, p_name text, p_host text, p_pid integer, p_apps text[], p_concurrency integer, p_lease interval,
  p_org uuid default null)
  returns timestamptz
  language sql volatile set search_path = public, pg_temp as $$
  insert into worker (id, name, host, pid, apps, concurrency, expires_at, claims_for)
  values (p_id, p_name, p_host, p_pid, p_apps, p_concurrency, plane_now() + p_lease, p_org)
  on conflict (id) do update set expires_at = excluded.expires_at, stopped_at = null
  returning expires_at
$$;

-- It tells of pauses too.
drop function if exists beat(uuid, interval);

-- Renew the lease. Returns which jobs of this worker are cancelled, and which should hold before its next heartbeat (there are five
-- in a lease), each with the seconds until then. No row at all: the worker was forgotten.
create or replace function beat(p_worker uuid, p_lease interval)
  returns table (expires_at timestamptz, cancelled uuid[], overdue jsonb)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  update worker w set expires_at = plane_now() + p_lease where w.id = p_worker returning w.expires_at into expires_at;
  if not found then
    return;
  end if;
  select coalesce(array_agg(c.id), '{}') into cancelled from find_cancelled(p_worker) c;
  select coalesce(jsonb_object_agg(o.id, o.seconds), '{}') into overdue from find_overdue(p_worker, p_lease / 4) o;
  return next;
end
$$;

-- A worker that ends as it should. Whatever it could not hand back is adopted at once.
create or replace function stop_worker(p_worker uuid) returns void
  language sql volatile set search_path = public, pg_temp as $$
  update worker set stopped_at = plane_now(), expires_at = plane_now() where id = p_worker
$$;

-- Workers that have been gone for a day are forgotten, once none of their jobs is left to adopt.
create or replace function forget_workers() returns void
  language sql volatile set search_path = public, pg_temp as $$
  delete from worker w where w.expires_at < (select plane_now()) - interval '1 day'
    and not exists (select from find_orphans(null) o where o.worker_id = w.id)
$$;

-- Take a dead worker's job from it. What became of the job was decided by the caller from what it saw; if any of that
-- has changed, nothing happens and the next look decides again.
create or replace function adopt_job(
  p_org uuid, p_job uuid, p_worker uuid, p_epoch bigint, p_cancelled boolean, p_held boolean, p_status text,
  p_error text, p_action text, p_body bytea)
  returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_job record;
  lost worker%rowtype;
  at timestamptz;
  kinds text[] := array['worker_lost', 'status'];
  told jsonb[];
  pauses record;
begin
  perform set_config('app.org_id', p_org::text, true);
  select j.session_id, j.leased_at, j.status, j.holds, j.pause, j.checkpoint into the_job from job j
  where j.org_id = p_org and j.id = p_job and j.worker_id = p_worker and j.epoch = p_epoch
    and (j.cancel_requested_at is not null) = p_cancelled and (j.holds <> '{}') = p_held
  for no key update skip locked;
  if not found then
    return false;
  end if;
  at := plane_now();
  select * into lost from worker w where w.id = p_worker;
  if lost.expires_at >= at then
    return false;
  end if;
  if p_status = 'RUNNING' then
    update job set worker_id = null, leased_at = null, runnable_at = at, deaths = deaths + (lost.stopped_at is null)::int,
      running_seconds = running_seconds
        + greatest(0, extract(epoch from coalesce(least(lost.expires_at, at), at) - the_job.leased_at))
    where org_id = p_org and id = p_job;
  else
    update job set status = p_status,
      error_message = coalesce(case when p_status = 'CANCELLED' then cancel_reason end, p_error),
      holds = case when p_status = 'PAUSED' then holds else '{}' end,
      held_at = case when p_status = 'PAUSED' then held_at end, worker_id = null, leased_at = null, runnable_at = null,
      deaths = deaths + (lost.stopped_at is null)::int,
      running_seconds = running_seconds
        + greatest(0, extract(epoch from coalesce(least(lost.expires_at, at), at) - the_job.leased_at))
    where org_id = p_org and id = p_job;
  end if;
  if p_status in ('FAILED', 'CANCELLED') then
    -- Nobody will settle them any more. They may have happened, and that is what they say.
    update tool_call set status = 'uncertain' where org_id = p_org and job_id = p_job and status = 'intended';
  end if;
  perform void_chunks(p_org, p_job, p_epoch, null);
  told := array[jsonb_build_object('worker', lost.name, 'epoch', p_epoch), jsonb_build_object('status', p_status)];
  if p_status = 'FAILED' then
    kinds := array['worker_lost', 'error', 'status'];
    told := array[told[1], jsonb_build_object('message', left(p_error, 500)),
      told[2] || jsonb_build_object('error', left(p_error, 500))];
  elsif p_status = 'PAUSED' then
    select f.* into pauses from pause_events(kinds, told, p_status, the_job.holds, the_job.pause, the_job.checkpoint, at) f;
    kinds := pauses.types;
    told := pauses.data;
    update job set pause = pauses.pause where org_id = p_org and id = p_job;
  end if;
  perform session_append(p_org, the_job.session_id, 0, kinds, array_fill(p_job, array[cardinality(kinds)]), told,
    array[p_action], array[p_body], array[p_job]);
  return true;
end
$$;

-- A living worker gives up a job whose last write it could not make. It ends here where somebody cancelled it or where it
-- was handed back too often (p_error), stops where somebody holds it, and is claimed again otherwise: after p_delay_seconds.
-- p_hand_backs: how often in a row that happened.
create or replace function release_job(
  p_org uuid, p_job uuid, p_worker uuid, p_epoch bigint, p_hand_backs integer, p_delay_seconds double precision,
  p_error text, p_action text, p_body bytea) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  the_job record;
  at timestamptz;
  ends_as text;
  kinds text[] := '{}';
  events jsonb[] := '{}';
  pauses record;
begin
  perform set_config('app.org_id', p_org::text, true);
  select j.session_id, j.leased_at, j.holds, j.pause, j.checkpoint, j.cancel_requested_at is not null as cancelled, j.cancel_reason
  into the_job from job j
  where j.org_id = p_org and j.id = p_job and j.worker_id = p_worker and j.epoch = p_epoch
  for no key update;
  if not found then
    return false;
  end if;
  at := plane_now();
  update job set worker_id = null, leased_at = null, hand_backs = p_hand_backs,
    runnable_at = case when holds = '{}' then at + make_interval(secs => p_delay_seconds) end,
    running_seconds = running_seconds + extract(epoch from at - the_job.leased_at)
  where org_id = p_org and id = p_job;
  ends_as := case when the_job.cancelled then 'CANCELLED' when p_error is not null then 'FAILED'
    when the_job.holds <> '{}' then 'PAUSED' end;
  if ends_as in ('CANCELLED', 'FAILED') then
    update job set status = ends_as, holds = '{}', held_at = null, runnable_at = null,
      error_message = case when ends_as = 'FAILED' then p_error else coalesce(the_job.cancel_reason, 'cancelled') end
    where org_id = p_org and id = p_job;
    update tool_call set status = 'uncertain' where org_id = p_org and job_id = p_job and status = 'intended';
  elsif ends_as = 'PAUSED' then
    update job set status = 'PAUSED' where org_id = p_org and id = p_job;
  end if;
  if ends_as = 'FAILED' then
    kinds := array['error'];
    events := array[jsonb_build_object('message', left(p_error, 500))];
  end if;
  if ends_as is not null then
    kinds := kinds || 'status'::text;
    events := events || jsonb_strip_nulls(jsonb_build_object('status', ends_as,
      'reason', case when ends_as = 'CANCELLED' then the_job.cancel_reason end,
      'error', case when ends_as = 'FAILED' then left(p_error, 500) end));
  end if;
  if ends_as = 'PAUSED' then
    select f.* into pauses from pause_events(kinds, events, ends_as, the_job.holds, the_job.pause, the_job.checkpoint, at) f;
    kinds := pauses.types;
    events := pauses.data;
    update job set pause = pauses.pause where org_id = p_org and id = p_job;
  end if;
  perform session_append(p_org, the_job.session_id, 0, kinds, array_fill(p_job, array[cardinality(events)]), events,
    array[p_action], array[p_body], array[p_job]);
  return true;
end
$$;
