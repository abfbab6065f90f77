-- Every write of an attempt: one round trip, one commit. It is fenced by worker and epoch, and numbered: no row means
-- "you lost it: stop"; a write that was applied before (its answer was lost on the way) is told so and not repeated.
--
-- p_calls, p_intents and p_outcomes are what calls.sql writes of calls. A call with status 'intended' may be sent until
-- dispatch_before, which lies inside the worker's lease.
-- p_status null leaves the job with its worker; anything else, 'RUNNING' included, ends the lease. What was asked for
-- since the worker last looked still counts then: a cancel ends a job that would only wait or be handed back, a hold
-- pauses one that is handed back, and one that nothing holds any more goes on. The answer says what became of it.
-- p_policies names the policies by which calls were allowed: where they changed since, no intent is written.
-- p_more holds what not every write has, each under its own key: see record_more. A job that sleeps with p_delay_seconds
-- null wakes by a signal alone. A job that is handed back is claimed again after p_delay_seconds; `hand_backs` in p_more says
-- how often in a row that happened without progress.
-- p_past_boundary: the write ends one step and begins the next; it is refused where the job is to stop between them.
-- A conversation is completed only if its job has read every message; otherwise nothing is written, and the answer
-- says RUNNING.
-- In a new plane, without statistics, the planner would read whole tables, and keep that plan: it may use indexes only. `is not distinct
-- from` keeps it from finding a job by its worker.
create or replace function advance_job(
  p_org uuid, p_job uuid, p_worker uuid, p_epoch bigint, p_write bigint,
  p_checkpoint text, p_memory text, p_mac bytea,
  p_step integer, p_message_seq bigint, p_response text, p_prompt_tokens integer, p_completion_tokens integer,
  p_step_seconds double precision,
  p_done_step integer, p_calls text, p_arguments text[], p_outcomes text, p_results text[], p_intents text,
  p_dispatch_seconds double precision, p_past_boundary boolean,
  p_stored_ids uuid[], p_stored bytea[],
  p_reply text, p_status text, p_error text, p_delay_seconds double precision, p_hold text, p_result text,
  p_policies text, p_open_approvals integer, p_more jsonb,
  p_event_types text[], p_event_data jsonb[], p_actions text[], p_bodies bytea[])
  returns table (
    status text, session_id uuid, message_seq bigint, held boolean, cancelled boolean, dispatch_before timestamptz,
    now timestamptz, applied_before boolean, policies text,
    held_seconds double precision)
  language plpgsql set search_path = public, pg_temp set enable_seqscan = off set enable_bitmapscan = off as $$
#variable_conflict use_column
declare
  the_job record;
  lease_end timestamptz;
  ends timestamptz;
  new_messages integer := 0;
  new_holds text[];
  ends_as text;
  answer jsonb;
  done boolean;
  atlases bigint;
  pauses record;
  the_chat uuid;
begin
  -- Assignments, not queries: an expression without tables needs no executor.
  status := set_config('app.org_id', p_org::text, true);
  applied_before := false;
  if p_more ? 'waits' then
    perform lock_waits(p_org, p_more -> 'waits'); -- before the job is
  end if;
  if p_more ? 'end_session' then -- a session is locked before its jobs
    perform from session s
    where s.org_id = p_org and s.id = (select j.session_id from job j where j.org_id = p_org and j.id = p_job) for no key update;
  end if;
  if p_status is null then
    update job j
    set checkpoint = coalesce(p_checkpoint::jsonb, j.checkpoint), memory = coalesce(p_memory::jsonb, j.memory),
      checkpoint_mac = coalesce(p_mac, j.checkpoint_mac),
      write_seq = p_write, step_index = coalesce(p_done_step, j.step_index),
      deaths = case when p_done_step is null then j.deaths else 0 end,
      hand_backs = case when p_done_step is null then j.hand_backs else 0 end, updated_at = plane_now()
    where j.org_id = p_org and j.id = p_job and j.worker_id is not distinct from p_worker and j.epoch = p_epoch
      and j.write_seq = p_write - 1
    returning j.session_id, j.agent_id, j.kind, j.holds, j.held_at, j.cancel_requested_at is not null as cancelled,
      j.updated_at as at
    into the_job;
    now := the_job.at;
  else
    select j.session_id, j.agent_id, j.kind, j.holds, j.held_at, j.cancel_requested_at is not null as cancelled,
      j.cancel_reason, j.leased_at, j.pause
    into the_job
    from job j
    where j.org_id = p_org and j.id = p_job and j.worker_id is not distinct from p_worker and j.epoch = p_epoch
      and j.write_seq = p_write - 1
    for no key update;
    now := plane_now();
  end if;
  if the_job.session_id is null then
    -- Lost; or only the answer to this very write was lost. A write that ended the lease is known by its epoch and
    -- number alone: nobody else writes under them.
    return query
      select j.status, j.session_id, h.message_seq, j.holds <> '{}', j.cancel_requested_at is not null,
        (select max(c.dispatch_before) from tool_call c
         where c.org_id = p_org and c.job_id = p_job and c.status = 'intended'), plane_now(), true,
        policies_version(p_org), extract(epoch from plane_now() - j.held_at)::double precision
      from job j join session_head h on h.org_id = j.org_id and h.session_id = j.session_id
      where j.org_id = p_org and j.id = p_job and j.epoch = p_epoch and j.write_seq = p_write
        and (j.worker_id = p_worker or (j.worker_id is null and p_status is not null));
    return;
  end if;

  -- One look at everything that a write depends on besides its job. `policies` is policies_version(), written out. A write that only
  -- ends a step depends on none of it; the next response is judged by the policies of then.
  if p_dispatch_seconds is not null or p_step is not null or p_status is not null or p_more is not null or p_done_step is null then
    select o.policy_version::text || '.' || p.version::text
        || case when o.confirmation_version > 0 then '.' || o.confirmation_version::text else '' end,
      (select count(*) from session_atlas b where b.org_id = p_org and b.session_id = the_job.session_id), w.expires_at
    into policies, atlases, lease_end
    from org o cross join platform_policy_version p left join worker w on w.id = p_worker
    where o.id = p_org;
  else
    select o.policy_version::text || '.' || p.version::text
        || case when o.confirmation_version > 0 then '.' || o.confirmation_version::text else '' end
    into policies
    from org o cross join platform_policy_version p
    where o.id = p_org;
  end if;
  if (p_dispatch_seconds is not null or p_open_approvals > 0) and policies is distinct from p_policies then
    raise exception using errcode = 'CX409', detail = 'policy_changed',
      message = 'The policies changed since this call was authorised.', hint = 'It is authorised again.';
  end if;

  -- Whatever calls something, or is about to read, has looked at all atlases of its session.
  if (p_dispatch_seconds is not null or p_more #> '{gates,atlases}' is not null)
      and atlases <> coalesce((p_more #>> '{gates,atlases}')::integer, 0) then
    perform require_atlases(p_org, the_job.session_id, (p_more #>> '{gates,atlases}')::integer);
  end if;

  session_id := the_job.session_id;
  held := the_job.holds <> '{}';
  held_seconds := extract(epoch from now - the_job.held_at);
  cancelled := the_job.cancelled;
  if p_past_boundary and (held or cancelled) then
    raise exception using errcode = 'CX409', detail = 'stopped_at_boundary',
      message = 'Somebody wants this job to stop between two steps.', hint = 'The step that is over is written by itself.';
  end if;

  if p_reply is not null or (p_status = 'COMPLETED' and the_job.kind = 'conversation') then
    if p_more -> 'gates' ? 'state' then
      perform lock_gates(p_org, the_job.session_id, now);
    end if;
    select h.message_seq, h.chat_id into strict message_seq, the_chat
    from session_head h where h.org_id = p_org and h.session_id = the_job.session_id for update;
    if p_status = 'COMPLETED' and the_job.kind = 'conversation' and message_seq > p_message_seq then
      status := 'RUNNING';
      return next;
      return;
    end if;
  end if;

  if p_status is not null then
    ends := now + make_interval(secs => p_delay_seconds);
    new_holds := case when p_hold is null or p_hold = any (the_job.holds) then the_job.holds
      else the_job.holds || p_hold end;
    ends_as := case
      when the_job.cancelled and p_status not in ('COMPLETED', 'FAILED') then 'CANCELLED'
      when p_status = 'RUNNING' and new_holds <> '{}' then 'PAUSED'
      when p_status = 'PAUSED' and new_holds = '{}' then 'RUNNING'
      else p_status end;
    if ends_as <> p_status then
      p_event_types := array_append(p_event_types, 'status');
      p_event_data := array_append(p_event_data, jsonb_strip_nulls(jsonb_build_object(
        'status', ends_as, 'reason', case when ends_as = 'CANCELLED' then the_job.cancel_reason end)));
    end if;
    if ends_as in ('COMPLETED', 'FAILED', 'CANCELLED') then
      new_holds := '{}';
    end if;
    if p_more ? 'corruption' then
      done := report_corruption(p_org, p_job, p_more #>> '{corruption,type}', p_error);
    end if;
    if new_holds <> '{}' or 'session_paused' = any (p_event_types) then
      select f.* into pauses
      from pause_events(p_event_types, p_event_data, ends_as, new_holds, the_job.pause,
        coalesce(p_checkpoint::jsonb, (select j.checkpoint from job j where j.org_id = p_org and j.id = p_job)), now) f;
      p_event_types := pauses.types;
      p_event_data := pauses.data;
      the_job.pause := pauses.pause;
    end if;
    if ends_as = 'RUNNING' then
      update job j
      set checkpoint = coalesce(p_checkpoint::jsonb, j.checkpoint), memory = coalesce(p_memory::jsonb, j.memory),
      checkpoint_mac = coalesce(p_mac, j.checkpoint_mac),
        write_seq = p_write, step_index = coalesce(p_done_step, j.step_index),
        deaths = case when p_done_step is null then j.deaths else 0 end,
        hand_backs = coalesce((p_more ->> 'hand_backs')::integer, case when p_done_step is null then j.hand_backs else 0 end),
        worker_id = null, leased_at = null, runnable_at = case when p_status = 'RUNNING' then ends else now end,
        updated_at = now,
        running_seconds = j.running_seconds + extract(epoch from now - the_job.leased_at)
      where j.org_id = p_org and j.id = p_job;
    else
      update job j
      set status = ends_as,
        checkpoint = coalesce(p_checkpoint::jsonb, j.checkpoint), memory = coalesce(p_memory::jsonb, j.memory),
        checkpoint_mac = coalesce(p_mac, j.checkpoint_mac),
        write_seq = p_write, step_index = coalesce(p_done_step, j.step_index),
        deaths = case when p_done_step is null then j.deaths else 0 end,
        hand_backs = coalesce((p_more ->> 'hand_backs')::integer, case when p_done_step is null then j.hand_backs else 0 end),
        worker_id = null, leased_at = null,
        runnable_at = case when ends_as in ('RETRY', 'SLEEPING') and new_holds = '{}' then ends end,
        next_retry_at = case when ends_as = 'RETRY' then ends end,
        wake_at = case when ends_as = 'SLEEPING' then ends end,
        retry_count = j.retry_count + (ends_as = 'RETRY')::integer,
        open_approvals = case when ends_as = 'WAITING_FOR_APPROVAL' then p_open_approvals else 0 end,
        holds = new_holds, held_at = case when new_holds <> '{}' then coalesce(j.held_at, now) end,
        pause = case when new_holds <> '{}' then the_job.pause end,
        error_message = case when ends_as = 'CANCELLED' then coalesce(the_job.cancel_reason, p_error, 'cancelled')
          when ends_as = 'COMPLETED' then null
          when ends_as = p_status then coalesce(p_error, j.error_message)
          else j.error_message end,
        result = coalesce(p_result::jsonb, j.result),
        running_seconds = j.running_seconds + extract(epoch from now - the_job.leased_at)
      where j.org_id = p_org and j.id = p_job;
    end if;
  end if;
  status := coalesce(ends_as, 'RUNNING');

  if p_step is not null then
    -- The last thing that the model was asked is the answer of this step: what it cost stands with it.
    answer := p_more #> '{usage,-1}';
    if answer ->> 'purpose' in ('step', 'model') and (answer -> 'step_index')::integer = p_step then
      p_more := case when jsonb_array_length(p_more -> 'usage') > 1 then p_more #- '{usage,-1}' else p_more - 'usage' end;
      if p_more = '{}' then
        p_more := null;
      end if;
    else
      answer := null;
    end if;
    insert into step (org_id, job_id, step_index, message_seq, response, prompt_tokens, completion_tokens, started_at,
      created_at, agent_id, model, cache_read_tokens, cache_write_tokens, cost_micros, estimated, seconds)
    values (p_org, p_job, p_step, p_message_seq, p_response::jsonb, p_prompt_tokens, p_completion_tokens,
      now - make_interval(secs => p_step_seconds), now, the_job.agent_id, answer ->> 'model',
      (answer -> 'cache_read_tokens')::bigint, (answer -> 'cache_write_tokens')::bigint, (answer ->> 'cost_micros')::bigint,
      (answer -> 'estimated')::boolean, (answer -> 'seconds')::double precision);
  end if;
  if p_stored_ids is not null then
    insert into stored_result (org_id, id, job_id, content, created_at)
    select p_org, s.id, p_job, s.content, now from unnest(p_stored_ids, p_stored) s (id, content);
  end if;
  if p_outcomes is not null then
    done := record_outcomes(p_org, p_job, p_outcomes::jsonb, p_results, now);
  end if;
  if p_dispatch_seconds is not null then
    if lease_end is null or lease_end <= now then
      raise exception using errcode = 'CX409', detail = 'lease_expired',
        message = 'The lease of this worker has run out.', hint = 'Another worker takes its jobs over.';
    end if;
    dispatch_before := least(now + make_interval(secs => p_dispatch_seconds), lease_end);
  end if;
  if p_intents is not null then
    done := record_intents(p_org, p_job, the_job.session_id, p_intents::jsonb, dispatch_before, now);
  end if;
  if p_calls is not null then
    done := record_calls(
      p_org, p_job, the_job.session_id, p_calls::jsonb, p_arguments, p_results, dispatch_before, now);
  end if;
  if ends_as in ('FAILED', 'CANCELLED') then
    update tool_call c set status = 'rejected', error = 'its job ended', settled_by = 'cancelled', finished_at = now
    where c.org_id = p_org and c.job_id = p_job and c.status in ('awaiting', 'approved');
  end if;
  if p_more is not null then
    done := record_more(p_org, p_job, the_job.session_id, p_more, now);
  end if;
  if p_reply is not null then
    insert into message (org_id, session_id, seq, role, text, job_id, created_at)
    values (p_org, the_job.session_id, message_seq + 1, 'assistant', p_reply, p_job, now);
    new_messages := 1;
    if the_chat is not null then
      perform push_reply(p_org, the_job.session_id, the_chat, jsonb_build_object('seq', message_seq + 1), now);
    end if;
  end if;

  if new_messages > 0 or cardinality(p_event_types) > 0 or cardinality(p_actions) > 0 then
    message_seq := session_append(p_org, the_job.session_id, new_messages, p_event_types,
      array_fill(p_job, array[cardinality(p_event_types)]), p_event_data, p_actions, p_bodies,
      array_fill(p_job, array[cardinality(p_actions)]));
  else
    select h.message_seq into message_seq
    from session_head h where h.org_id = p_org and h.session_id = the_job.session_id;
  end if;
  return next;
end
$$;
