-- The writes of calls, whoever performs their effect: a worker (advance_job) or an agent that runs elsewhere (external.sql). Whoever
-- calls these holds the lock of the job.
--
-- Calls, intents and outcomes are arrays of objects, which calls/rules/pipeline.py makes. What may be large stands beside them: `arguments`
-- and `result` are places in p_arguments and p_results. Each row is written by key: a plan over all of them might read every call
-- that the org ever made. Each returns true: a function that returns a value is called in an assignment, without a query around it.

-- A call, an intent and an outcome as calls/rules/pipeline.py writes them.
drop type if exists call_record, intent_record, outcome_record;
create type call_record as (
  id uuid, step integer, position integer, tool text, digest text, arguments integer, input_hash text, read_only boolean,
  on_uncertain text, verdict text, rule text, timeout_seconds double precision, status text, result integer, result_id uuid,
  error text, standing_id uuid, granter_revision integer);
create type intent_record as (
  id uuid, "grant" boolean, digest text, input_hash text, attempt integer, on_uncertain text, timeout_seconds double precision,
  verdict text, rule text, standing_id uuid, granter_revision integer);
create type outcome_record as (
  id uuid, status text, result integer, result_id uuid, error text, settled_by text);

-- Whether a verdict lets a call be sent: an allow, and where a standing approval gave it, with a use of that one.
create or replace function may_be_sent(p_verdict text, p_rule text, p_standing uuid) returns boolean
  language sql immutable parallel safe as $$
  select p_verdict is not distinct from 'allow'
    and p_standing is not distinct from case when p_rule like 'standing:%' then substr(p_rule, 10)::uuid end
$$;

-- Raised where a call is not what the write takes it for.
create or replace function call_changed() returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  raise exception using errcode = 'CX409', detail = 'call_changed',
    message = 'The call changed meanwhile.', hint = 'Read it again, and do what its status allows.';
end
$$;

-- New calls with their verdicts. One with status 'intended' may be sent until p_before. A call that is there already is asked for
-- again, with the same row.
create or replace function record_calls(
  p_org uuid, p_job uuid, p_session uuid, p_calls jsonb, p_arguments text[], p_results text[], p_before timestamptz,
  p_now timestamptz) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  call call_record;
begin
  for i in 0 .. jsonb_array_length(p_calls) - 1 loop
    call := jsonb_populate_record(null::call_record, p_calls -> i);
    if (call.status = 'intended' and not may_be_sent(call.verdict, call.rule, call.standing_id))
        or (call.status = 'allowed' and call.verdict is distinct from 'allow') then
      raise exception using errcode = 'CX409', detail = 'not_authorised',
        message = 'A call that was not allowed cannot be sent.', hint = 'This is a defect: report it.';
    end if;
    insert into tool_call (org_id, id, job_id, step_index, position, tool_name, tool_digest, arguments, input_hash,
      read_only, on_uncertain, verdict, rule, status, dispatch_before, settle_after, result, result_id, error,
      created_at, finished_at)
    values (p_org, call.id, p_job, call.step, call.position, call.tool, call.digest,
      p_arguments[call.arguments]::jsonb, decode(call.input_hash, 'hex'), call.read_only, call.on_uncertain,
      call.verdict, call.rule, call.status, case when call.status = 'intended' then p_before end,
      case when call.status = 'intended' then p_before + make_interval(secs => call.timeout_seconds) end,
      p_results[call.result]::jsonb, call.result_id, call.error, p_now,
      case when call.status in ('completed', 'failed', 'rejected') then p_now end)
    on conflict on constraint tool_call_pkey do update
    set status = excluded.status, tool_digest = excluded.tool_digest, verdict = excluded.verdict,
      rule = excluded.rule, granted = false, error = excluded.error, settled_by = null, finished_at = excluded.finished_at,
      on_uncertain = excluded.on_uncertain, dispatch_before = coalesce(excluded.dispatch_before, tool_call.dispatch_before),
      settle_after = coalesce(excluded.settle_after, tool_call.settle_after)
    where tool_call.status in ('allowed', 'approved', 'cleared', 'parked') and tool_call.job_id = p_job;
    if not found then
      perform call_changed();
    end if;
    if call.standing_id is not null then
      perform use_standing(p_org, p_session, call.standing_id, call.id, call.granter_revision);
    end if;
  end loop;
  return true;
end
$$;

-- Calls that have their row already begin now, or once more, and may be sent until p_before. With `grant` a call consumes the grant
-- that a person's approval gave it, which fits one tool version and one digest of arguments; without one it was allowed, or sent
-- before. `verdict` and `rule` are there if it was authorised anew. A use of a standing approval is looked at once more and counted
-- here; a write has at most one such call, so that two of them cannot wait for each other.
create or replace function record_intents(
  p_org uuid, p_job uuid, p_session uuid, p_intents jsonb, p_before timestamptz, p_now timestamptz) returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  intent intent_record;
begin
  for i in 0 .. jsonb_array_length(p_intents) - 1 loop
    intent := jsonb_populate_record(null::intent_record, p_intents -> i);
    if intent."grant" then
      update approval_grant g set consumed_at = p_now
      from tool_call c
      where g.org_id = p_org and g.call_id = intent.id and g.consumed_at is null and g.expires_at > p_now
        and g.tool_digest = intent.digest and g.input_hash = decode(intent.input_hash, 'hex')
        and c.org_id = p_org and c.id = intent.id and c.job_id = p_job and c.status = 'approved'
        and c.input_hash = g.input_hash;
      if not found then
        raise exception using errcode = 'CX409', detail = 'grant_refused',
          message = 'There is no grant for exactly this call.', hint = 'It needs a new approval.';
      end if;
    end if;
    update tool_call c
    set status = 'intended', granted = c.granted or intent."grant", attempt = intent.attempt,
      verdict = coalesce(intent.verdict, c.verdict), rule = coalesce(intent.rule, c.rule),
      on_uncertain = intent.on_uncertain, dispatch_before = p_before,
      settle_after = p_before + make_interval(secs => intent.timeout_seconds), error = null, settled_by = null
    where c.org_id = p_org and c.id = intent.id and c.job_id = p_job
      and (intent."grant" or c.status in ('allowed', 'intended', 'uncertain', 'cleared', 'parked'))
      and (intent.verdict is null or may_be_sent(intent.verdict, intent.rule, intent.standing_id));
    if not found then
      raise exception using errcode = 'CX409', detail = 'not_authorised',
        message = 'A call that is over, or that was not allowed, cannot be sent.', hint = 'This is a defect: report it.';
    end if;
    if intent.standing_id is not null then
      perform use_standing(p_org, p_session, intent.standing_id, intent.id, intent.granter_revision);
    end if;
  end loop;
  return true;
end
$$;

-- What became of calls: done, failed, never sent, in doubt, or given up until what they themselves wait for is there. p_job: whose calls they must be; null where the call alone is known.
create or replace function record_outcomes(p_org uuid, p_job uuid, p_outcomes jsonb, p_results text[], p_now timestamptz)
  returns boolean
  language plpgsql set search_path = public, pg_temp as $$
declare
  outcome outcome_record;
begin
  for i in 0 .. jsonb_array_length(p_outcomes) - 1 loop
    outcome := jsonb_populate_record(null::outcome_record, p_outcomes -> i);
    update tool_call c
    set status = outcome.status, result = p_results[outcome.result]::jsonb, result_id = outcome.result_id,
      error = outcome.error, settled_by = outcome.settled_by,
      finished_at = case when outcome.status not in ('uncertain', 'parked') then p_now end
    where c.org_id = p_org and c.id = outcome.id and (p_job is null or c.job_id = p_job) and c.status = any (case outcome.status
      when 'rejected' then array['awaiting', 'allowed', 'approved', 'cleared', 'parked']
      when 'uncertain' then array['intended', 'uncertain']
      when 'parked' then array['intended', 'uncertain']
      else array['intended', 'uncertain', 'cleared', 'parked'] end);
    if not found then
      perform call_changed();
    end if;
  end loop;
  return true;
end
$$;
