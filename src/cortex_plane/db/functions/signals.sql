-- Signals: sent by whoever may submit jobs, waited for by jobs that sleep.
--
-- Nobody misses one: the sender and the job that goes to sleep take the lock of (org, name, key) first, so that one of them
-- comes second and sees what the other committed. After it come the jobs in the order of their ids, then the heads of
-- their sessions in the order of theirs.

-- Ordered by what is locked and not by what it stands for: two keys may share a lock.
create or replace function lock_signals(p_org uuid, p_names text[], p_keys text[]) returns void
  language plpgsql set search_path = public, pg_temp as $$
declare
  place bigint;
begin
  for place in
    select distinct hashtextextended(jsonb_build_array('signal', p_org, n.name, n.key)::text, 3)
    from unnest(p_names, p_keys) n (name, key) order by 1
  loop
    perform pg_advisory_xact_lock(place);
  end loop;
end
$$;

create or replace function lock_waits(p_org uuid, p_waits jsonb) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform lock_signals(p_org, array_agg(w.name), array_agg(w.key))
  from jsonb_to_recordset(p_waits) w (name text, key text);
end
$$;

-- What a job waits for from now on, under its own lock. A wait that is there already stays as it is, with what arrived. Where
-- a signal was sent before, the job that was just put to sleep may go on at once.
create or replace function record_waits(p_org uuid, p_job uuid, p_session uuid, p_waits jsonb, p_now timestamptz)
  returns void language plpgsql set search_path = public, pg_temp as $$
declare
  new_ones jsonb[];
begin
  insert into job_wait (org_id, job_id, entry, name, key, created_at)
  select p_org, p_job, w.entry, w.name, w.key, p_now
  from jsonb_to_recordset(p_waits) w (entry text, name text, key text)
  on conflict on constraint job_wait_pkey do nothing;
  with heard as (
    update job_wait w set signal_id = s.id, payload = s.payload, sender_id = s.sender_id, arrived_at = p_now
    from signal s
    where w.org_id = p_org and w.job_id = p_job and w.arrived_at is null
      and s.org_id = p_org and s.name = w.name and s.key = w.key
    returning w.entry, s.id, s.name, s.key)
  select array_agg(jsonb_build_object('signal_id', h.id, 'name', h.name, 'key', h.key, 'entry', h.entry) order by h.entry)
  into new_ones from heard h;
  if not exists (
      select from job_wait w join jsonb_to_recordset(p_waits) g (entry text) on g.entry = w.entry
      where w.org_id = p_org and w.job_id = p_job and w.arrived_at is not null) then
    return;
  end if;
  update job j set wake_at = p_now, runnable_at = case when j.holds = '{}' then p_now end
  where j.org_id = p_org and j.id = p_job and j.status = 'SLEEPING';
  if new_ones is not null then
    perform session_append(p_org, p_session, 0, array_fill('signal_received'::text, array[cardinality(new_ones)]),
      array_fill(p_job, array[cardinality(new_ones)]), new_ones, '{}', '{}');
  end if;
end
$$;

-- Locks up to p_limit of the open jobs that wait for it, and tells which they are; p_limit and one more say that there are
-- others. Jobs that ended meanwhile are left out. The signal's own lock is held, so nobody begins to wait for it now.
create or replace function lock_waiters(p_org uuid, p_name text, p_key text, p_limit integer, out waits jsonb, out more boolean)
  language plpgsql set search_path = public, pg_temp as $$
declare
  concerned uuid[];
begin
  select coalesce(array_agg(f.job_id order by f.job_id), '{}') into concerned
  from (
    select distinct w.job_id
    from job_wait w join job j on j.org_id = w.org_id and j.id = w.job_id
    where w.org_id = p_org and w.name = p_name and w.key = p_key and w.arrived_at is null
      and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED')
    order by w.job_id limit p_limit + 1) f;
  more := cardinality(concerned) > p_limit;
  concerned := concerned[:p_limit];
  perform from job j where j.org_id = p_org and j.id = any (concerned) order by j.id for no key update;
  select coalesce(jsonb_agg(jsonb_build_object('job_id', j.id, 'session_id', j.session_id, 'entry', w.entry)
      order by j.session_id, j.id, w.entry), '[]')
  into waits
  from job j join job_wait w on w.org_id = j.org_id and w.job_id = j.id
  where j.org_id = p_org and j.id = any (concerned) and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED')
    and w.name = p_name and w.key = p_key and w.arrived_at is null;
end
$$;

-- Sends a signal, or finds the one that was sent before: the first payload stays. Returns whom it reaches first, with their
-- jobs locked; hear_signal tells them, in the same transaction.
create or replace function send_signal(
  p_org uuid, p_id uuid, p_name text, p_key text, p_payload text, p_sender uuid, p_sent_by text, p_limit integer)
  returns table (id uuid, made boolean, same boolean, waits jsonb, more boolean)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform lock_signals(p_org, array[p_name], array[p_key]);
  select s.id, s.payload = p_payload::jsonb into id, same
  from signal s where s.org_id = p_org and s.name = p_name and s.key = p_key;
  made := not found;
  if made then
    insert into signal (org_id, id, name, key, payload, sent_by, sender_id, created_at)
    values (p_org, p_id, p_name, p_key, p_payload::jsonb, p_sent_by, p_sender, plane_now());
    id := p_id;
    same := true;
  end if;
  if same then
    select w.waits, w.more into waits, more from lock_waiters(p_org, p_name, p_key, p_limit) w;
  end if;
  return next;
end
$$;

-- Whoever else waits for a signal that was sent.
create or replace function more_waiters(p_org uuid, p_id uuid, p_limit integer)
  returns table (waits jsonb, more boolean)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
declare
  sent record;
begin
  select s.name, s.key into sent from signal s where s.org_id = p_org and s.id = p_id;
  if not found then
    return;
  end if;
  perform lock_signals(p_org, array[sent.name], array[sent.key]);
  return query select w.waits, w.more from lock_waiters(p_org, sent.name, sent.key, p_limit) w;
end
$$;

-- Tells these waits what came, wakes their jobs unless something holds them, and says so in their sessions. The arrays have
-- one element for each wait, sorted by session; their jobs are locked. p_more: others are still to be told.
create or replace function hear_signal(
  p_org uuid, p_id uuid, p_sessions uuid[], p_jobs uuid[], p_entries text[], p_data jsonb[], p_bodies bytea[], p_more boolean)
  returns void language plpgsql set search_path = public, pg_temp as $$
declare
  at timestamptz := plane_now();
  told record;
begin
  update job_wait w set signal_id = s.id, payload = s.payload, sender_id = s.sender_id, arrived_at = at
  from signal s, unnest(p_jobs, p_entries) g (job_id, entry)
  where s.org_id = p_org and s.id = p_id
    and w.org_id = p_org and w.job_id = g.job_id and w.entry = g.entry and w.arrived_at is null;
  update job j set wake_at = at, runnable_at = case when j.holds = '{}' then at end
  where j.org_id = p_org and j.id = any (p_jobs) and j.status = 'SLEEPING';
  if not p_more then
    update signal s set told_at = at where s.org_id = p_org and s.id = p_id and s.told_at is null;
  end if;
  for told in
    select g.session_id, array_agg(g.job_id order by g.place) as jobs, array_agg(g.data order by g.place) as data,
      array_agg(g.body order by g.place) as bodies, count(*)::integer as many
    from unnest(p_sessions, p_jobs, p_data, p_bodies) with ordinality g (session_id, job_id, data, body, place)
    group by g.session_id order by g.session_id
  loop
    perform session_append(p_org, told.session_id, 0, array_fill('signal_received'::text, array[told.many]), told.jobs,
      told.data, array_fill('signal_received'::text, array[told.many]), told.bodies, told.jobs);
  end loop;
end
$$;

-- Signals that not everybody was told of, because whoever told them died. A minute old: the sender is still at the others.
create or replace function find_untold_signals(p_limit integer) returns table (org_id uuid, id uuid)
  language sql volatile security definer set search_path = public, pg_temp as $$
  select s.org_id, s.id from signal s
  where s.told_at is null and s.created_at < (select plane_now()) - interval '1 minute'
  order by s.created_at limit p_limit
$$;

-- Forgets what is older than p_older and was heard by no job that is still open, and what jobs waited for that ended. At
-- most p_limit of each, oldest first; returns how many.
create or replace function forget_signals(p_older interval, p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  waits integer;
  signals integer;
begin
  delete from job_wait w
  where (w.org_id, w.job_id, w.entry) in (
    select o.org_id, o.job_id, o.entry from job_wait o join job j on j.org_id = o.org_id and j.id = o.job_id
    where o.arrived_at is null and j.status in ('COMPLETED', 'FAILED', 'CANCELLED')
    limit p_limit);
  get diagnostics waits = row_count;
  delete from signal s
  where (s.org_id, s.id) in (
    select o.org_id, o.id from signal o
    where o.created_at < (select plane_now()) - p_older and o.told_at is not null and not exists (
      select from job_wait w join job j on j.org_id = w.org_id and j.id = w.job_id
      where w.org_id = o.org_id and w.signal_id = o.id and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED'))
    order by o.created_at limit p_limit);
  get diagnostics signals = row_count;
  return greatest(waits, signals);
end
$$;

call pg_temp.give_functions('cortex_scheduler', 'find_untold_signals(integer)', 'forget_signals(interval, integer)');
