-- The job state machine, as in jobs/model/jobs.py; a test compares the two for every pair of states.
-- Fires on `UPDATE OF status` only, so that other writes to a job do not pay for it.

create or replace function job_may_move(old_status text, new_status text) returns boolean
  language sql immutable parallel safe
  return case old_status
    when 'PENDING' then new_status in ('RUNNING', 'FAILED', 'CANCELLED')
    when 'RUNNING' then new_status in
      ('COMPLETED', 'FAILED', 'RETRY', 'WAITING_FOR_APPROVAL', 'SLEEPING', 'PAUSED', 'CANCELLED')
    when 'RETRY' then new_status in ('RUNNING', 'FAILED', 'CANCELLED')
    when 'WAITING_FOR_APPROVAL' then new_status in ('RUNNING', 'PAUSED', 'FAILED', 'CANCELLED')
    when 'SLEEPING' then new_status in ('RUNNING', 'PAUSED', 'FAILED', 'CANCELLED')
    when 'PAUSED' then new_status in ('RUNNING', 'FAILED', 'CANCELLED')
    else false
  end;

create or replace function job_guard() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  if old.status = new.status then
    return new;
  end if;
  if not job_may_move(old.status, new.status) then
    raise exception using errcode = 'CX409', detail = 'illegal_transition',
      message = format('A job cannot go from %s to %s.', old.status, new.status),
      hint = 'Read the job again; its status may have changed.';
  end if;
  new.updated_at := plane_now();
  if new.status in ('COMPLETED', 'FAILED', 'CANCELLED') then
    new.finished_at := new.updated_at;
  end if;
  return new;
end
$$;

create or replace trigger job_guard before update of status on job
  for each row execute function job_guard();

create or replace function job_record() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
declare
  facts jsonb := '{}';
begin
  if tg_op = 'UPDATE' and old.status = new.status then
    return null;
  end if;
  if new.status = 'FAILED' then
    facts := jsonb_build_object('error', new.error_message);
  elsif new.status = 'RETRY' then
    facts := jsonb_build_object('retry_count', new.retry_count, 'next_retry_at', new.next_retry_at);
  elsif new.status = 'WAITING_FOR_APPROVAL' then
    facts := jsonb_build_object('open_approvals', new.open_approvals);
  end if;
  insert into job_history (org_id, job_id, previous_status, new_status, metadata)
  values (new.org_id, new.id, case when tg_op = 'UPDATE' then old.status end, new.status, facts);
  return null;
end
$$;

create or replace trigger job_record after insert or update of status on job
  for each row execute function job_record();
