-- The invariants of hot tables, under the names of the constraints that they are. They are not CHECK constraints, because
-- PostgreSQL parses the text of each CHECK again with every statement that writes to its table.

create or replace function violate(p_table text, p_constraint text) returns void
  language plpgsql set search_path = public, pg_temp as $$
begin
  raise check_violation using table = p_table, constraint = p_constraint,
    message = format('new row for relation "%s" violates check constraint "%s"', p_table, p_constraint);
end
$$;

-- Its trigger fires where one of the columns is written that it is about: a checkpoint does not pay for it.
create or replace function job_invariants() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
declare
  broken text := case
    when new.status not in ('PENDING', 'RUNNING', 'RETRY', 'WAITING_FOR_APPROVAL', 'SLEEPING', 'PAUSED', 'COMPLETED', 'FAILED',
      'CANCELLED') then 'chk_job_status'
    when new.kind not in ('conversation', 'task', 'external') then 'chk_job_kind'
    when new.kind = 'external' and (new.worker_id is not null or new.runnable_at is not null) then 'chk_job_external'
    when not (0 <= new.retry_count and new.retry_count <= new.max_retries and new.max_retries <= 100)
      then 'chk_job_retry_bounds'
    when new.status = 'RETRY' and new.next_retry_at is null then 'chk_job_retry_has_time'
    when new.open_approvals < 0 then 'chk_job_open_approvals'
    when new.status = 'WAITING_FOR_APPROVAL' and new.open_approvals = 0 then 'chk_job_waiting_has_approval'
    when new.status = 'FAILED' and new.error_message is null then 'chk_job_failed_has_error'
    when (new.status in ('COMPLETED', 'FAILED', 'CANCELLED')) <> (new.finished_at is not null) then 'chk_job_terminal_has_end'
    when (new.worker_id is null) <> (new.leased_at is null)
      or (new.worker_id is not null and (new.status <> 'RUNNING' or new.runnable_at is not null)) then 'chk_job_lease'
    when (new.holds = '{}') <> (new.held_at is null) then 'chk_job_held_since'
    when new.status = 'PAUSED' and new.holds = '{}' then 'chk_job_paused_is_held'
    when new.runnable_at is not null
      and (new.status not in ('PENDING', 'RUNNING', 'RETRY', 'SLEEPING') or new.holds <> '{}') then 'chk_job_runnable' end;
begin
  if broken is not null then
    perform violate('job', broken);
  end if;
  return new;
end
$$;

-- Its name puts it behind the triggers that set `finished_at` and `runnable_at`.
create or replace trigger job_invariants before insert or update of status, kind, worker_id, leased_at, runnable_at, holds, held_at,
    error_message, finished_at, retry_count, max_retries, next_retry_at, open_approvals
  on job for each row execute function job_invariants();

-- A dispatch that nobody authorised, or that has no end, cannot be written. It takes columns as they are: PostgreSQL parses the CHECK that
-- calls it with every statement that writes a call, so the CHECK is short.
create or replace function tool_call_is_sound(
  status text, finished_at timestamptz, input_hash bytea, read_only boolean, verdict text, rule text,
  dispatch_before timestamptz, settle_after timestamptz, on_uncertain text, granted boolean) returns boolean
  language plpgsql immutable parallel safe set search_path = public, pg_temp as $$
declare
  broken text := case
    when status not in ('awaiting', 'allowed', 'approved', 'intended', 'uncertain', 'cleared', 'parked', 'completed', 'failed',
        'rejected', 'answered')
      then 'chk_tool_call_status'
    when (status in ('completed', 'failed', 'rejected', 'answered')) <> (finished_at is not null) then 'chk_tool_call_end'
    when length(input_hash) <> 32 then 'chk_tool_call_hash'
    when verdict not in ('allow', 'deny', 'requires_approval') then 'chk_tool_call_verdict'
    when on_uncertain not in ('retry_with_key', 'probe', 'ask_human', 'fail') then 'chk_tool_call_on_uncertain'
    when not (read_only or status in ('rejected', 'answered') or (verdict is not null and rule is not null and (
        status in ('awaiting', 'allowed', 'approved')
        or (dispatch_before is not null and settle_after is not null and on_uncertain is not null
          and (status <> 'intended' or verdict = 'allow' or granted)))))
      then 'chk_tool_call_intent' end;
begin
  if broken is not null then
    perform violate('tool_call', broken);
  end if;
  return true;
end
$$;
