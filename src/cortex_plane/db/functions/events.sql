-- Events: text chunks while a model speaks, and reading everything back in order.

-- Appends what the model of a step said since the last call; false where the worker has lost the job or the step is
-- recorded already, so that nobody is told what is over. Looked at under the head's lock: whatever takes the job away
-- or records the step holds it until its commit, so a chunk stands before those or not at all. A step that an earlier
-- attempt began to tell is told anew: `step_restarted` says so, and the old text is gone.
create or replace function append_chunks(
  p_org uuid, p_job uuid, p_worker uuid, p_epoch bigint, p_step integer, p_texts text[]) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  head session_head%rowtype;
  at timestamptz;
  void_epoch bigint;
begin
  perform set_config('app.org_id', p_org::text, true);
  select h.* into head
  from session_head h join job j on j.org_id = h.org_id and j.session_id = h.session_id
  where j.org_id = p_org and j.id = p_job
  for update of h;
  if not found
    or not exists (
      select from job j where j.org_id = p_org and j.id = p_job and j.worker_id = p_worker and j.epoch = p_epoch)
    or exists (select from step s where s.org_id = p_org and s.job_id = p_job and s.step_index = p_step) then
    return false;
  end if;
  at := plane_now();
  with gone as (
    delete from text_chunk c
    where c.org_id = p_org and c.job_id = p_job and c.step_index = p_step and c.epoch <> p_epoch
    returning c.epoch)
  select max(g.epoch) into void_epoch from gone g;
  if void_epoch is not null then
    head.event_seq := head.event_seq + 1;
    insert into event (org_id, session_id, seq, type, job_id, data, created_at)
    values (p_org, head.session_id, head.event_seq, 'step_restarted', p_job,
      jsonb_build_object('step', p_step, 'epoch', void_epoch), at);
  end if;
  insert into text_chunk (org_id, session_id, seq, job_id, step_index, epoch, text, created_at)
  select p_org, head.session_id, head.event_seq + t.number, p_job, p_step, p_epoch, t.text, at
  from unnest(p_texts) with ordinality t (text, number);
  update session_head h
  set event_seq = head.event_seq + coalesce(cardinality(p_texts), 0), last_activity_at = at
  where h.org_id = p_org and h.session_id = head.session_id;
  return true;
end
$$;

-- An answer broke off: what was told of it is void, and whoever showed it is told so. p_step null: the whole attempt ended,
-- and with it every answer that it was in the middle of.
create or replace function void_chunks(p_org uuid, p_job uuid, p_epoch bigint, p_step integer) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  head session_head%rowtype;
  void_step integer;
begin
  perform set_config('app.org_id', p_org::text, true);
  if not exists (
      select from text_chunk c
      where c.org_id = p_org and c.job_id = p_job and (p_step is null or c.step_index = p_step)) then
    return false;
  end if;
  select h.* into head
  from session_head h join job j on j.org_id = h.org_id and j.session_id = h.session_id
  where j.org_id = p_org and j.id = p_job
  for update of h;
  with gone as (
    delete from text_chunk c
    where c.org_id = p_org and c.job_id = p_job and c.epoch <= p_epoch and (p_step is null or c.step_index = p_step)
      and not exists (
      select from step s where s.org_id = p_org and s.job_id = p_job and s.step_index = c.step_index)
    returning c.step_index)
  select max(g.step_index) into void_step from gone g;
  if void_step is null then
    return false;
  end if;
  insert into event (org_id, session_id, seq, type, job_id, data, created_at)
  values (p_org, head.session_id, head.event_seq + 1, 'step_restarted', p_job,
    jsonb_build_object('step', void_step, 'epoch', p_epoch), plane_now());
  update session_head h set event_seq = head.event_seq + 1
  where h.org_id = p_org and h.session_id = head.session_id;
  return true;
end
$$;

-- Deletes the chunks of a session whose steps are durable. True once none of this step are left.
create or replace function drop_chunks(p_org uuid, p_job uuid, p_step integer) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
begin
  perform set_config('app.org_id', p_org::text, true);
  delete from text_chunk c using job j
  where j.org_id = p_org and j.id = p_job and c.org_id = p_org and c.session_id = j.session_id
    and exists (
      select from step s where s.org_id = p_org and s.job_id = c.job_id and s.step_index = c.step_index);
  return not exists (
    select from text_chunk c where c.org_id = p_org and c.job_id = p_job and c.step_index = p_step);
end
$$;

-- Deletes chunks that nobody came back for, of any org: whoever spoke them died, or was too late to say that they are
-- void. Readers leave them out already. At most p_limit, oldest first.
create or replace function forget_chunks(p_limit integer) returns integer
  language plpgsql security definer set search_path = public, pg_temp as $$
declare
  gone integer;
begin
  delete from text_chunk c
  where (c.org_id, c.session_id, c.seq) in (
    select o.org_id, o.session_id, o.seq from text_chunk o
    where o.created_at < (select plane_now()) - interval '1 hour'
    order by o.created_at limit p_limit);
  get diagnostics gone = row_count;
  return gone;
end
$$;
call pg_temp.give_functions('cortex_scheduler', 'forget_chunks(integer)');

-- What happened in a session after a number, in order; with p_job of that job alone. Chunks of a step that is recorded
-- are left out, also while their rows are still there: its message stands for them. So are those of a job that ended:
-- nobody will say the rest. What was said is kept once, in the
-- message or the step, so an event that points at it gets its text here, as much of it as a reader needs at once.
create or replace function events_after(p_session uuid, p_job uuid, p_after bigint, p_limit integer)
  returns table (seq bigint, type text, job_id uuid, data jsonb, created_at timestamptz)
  language plpgsql stable set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  return query
    with happened as (
      (select e.seq, e.type, e.job_id, e.data, e.created_at from event e
       where e.session_id = p_session and e.seq > p_after and (p_job is null or e.job_id = p_job)
       order by e.seq limit p_limit)
      union all
      (select c.seq, 'text_chunk', c.job_id,
         jsonb_build_object('step', c.step_index, 'epoch', c.epoch, 'text', c.text), c.created_at
       from text_chunk c
       where c.session_id = p_session and c.seq > p_after and (p_job is null or c.job_id = p_job)
         and not exists (
           select from step s where s.org_id = c.org_id and s.job_id = c.job_id and s.step_index = c.step_index)
         and not exists (
           select from job j where j.org_id = c.org_id and j.id = c.job_id
             and j.status in ('COMPLETED', 'FAILED', 'CANCELLED'))
       order by c.seq limit p_limit)
      order by seq limit p_limit)
    select h.seq, h.type, h.job_id,
      case when input.value is not null then h.data || jsonb_build_object('input', input.value)
        when said.text is null then h.data
        when length(said.text) <= 8000 then h.data || jsonb_build_object('text', said.text)
        else h.data || jsonb_build_object('text', left(said.text, 8000), 'truncated', true) end,
      h.created_at
    from happened h
    left join lateral (
      select m.text from message m
      where h.type = 'message' and h.data ? 'seq' and m.session_id = p_session and m.seq = (h.data ->> 'seq')::bigint
      union all
      select s.response ->> 'text' from step s
      where h.type in ('message', 'completion') and h.data ? 'step' and not h.data ? 'seq'
        and s.job_id = h.job_id and s.step_index = (h.data ->> 'step')::integer
      limit 1) said on true
    -- The input of a call is kept once too: in its row, or, before it has one, in the response.
    left join lateral (
      select coalesce(
        (select c.arguments from tool_call c where c.job_id = h.job_id and c.id = (h.data ->> 'id')::uuid),
        (select s.response #> array['calls', coalesce(h.data ->> 'position', '0'), 'arguments'] from step s
         where s.job_id = h.job_id and s.step_index = (h.data ->> 'step')::integer)) as value
      where h.type = 'tool_call') input on true
    order by h.seq;
end
$$;
