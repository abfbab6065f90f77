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

-- Whatever changes a job moves its `updated_at`; the writes of an attempt set it themselves.
create or replace function job_touched() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
begin
  new.updated_at := plane_now();
  return new;
end
$$;

-- Its name puts it behind the guard, which sets the time too.
create or replace trigger job_touched before update on job
  for each row when (new.updated_at = old.updated_at) execute function job_touched();

-- The approvals that a job began to wait for. What nobody has decided has no `status`.
create or replace function approvals_in_history(p_org uuid, p_ids uuid[]) returns jsonb
  language sql stable set search_path = public, pg_temp as $$
  select jsonb_agg(
    jsonb_build_object('id', r.id, 'tool', r.tool_name) || case when r.status = 'pending' then '{}'
      else jsonb_build_object('status', r.status, 'decided_by', r.resolved_by_name, 'decided_by_id', r.resolved_by,
        'via', r.resolved_via) end
    order by r.tool_name, r.id)
  from approval_request r where r.org_id = p_org and r.id = any (p_ids)
$$;

-- `app.job_change`: what whoever changes the status wants to have said of this change besides.
create or replace function job_record() returns trigger
  language plpgsql set search_path = public, pg_temp as $$
declare
  facts jsonb := '{}';
  more text := current_setting('app.job_change', true);
begin
  if tg_op = 'UPDATE' and old.status = new.status then
    return null;
  end if;
  if new.status = 'FAILED' then
    facts := jsonb_build_object('error', new.error_message);
  elsif new.status = 'RETRY' then
    facts := jsonb_build_object('retry_count', new.retry_count, 'next_retry_at', new.next_retry_at);
  elsif new.status = 'WAITING_FOR_APPROVAL' then
    facts := jsonb_build_object('open_approvals', new.open_approvals) || jsonb_strip_nulls(jsonb_build_object('approvals',
      approvals_in_history(new.org_id, array(
        select i.approval_id from approval_invocation i
        join approval_request r on r.org_id = i.org_id and r.id = i.approval_id and r.status = 'pending' and r.kind = 'call'
        where i.org_id = new.org_id and i.job_id = new.id))));
  end if;
  if tg_op = 'UPDATE' and old.status = 'WAITING_FOR_APPROVAL' then
    facts := facts || jsonb_strip_nulls(jsonb_build_object('approvals', approvals_in_history(new.org_id, array(
      select (a ->> 'id')::uuid
      from (select h.metadata from job_history h
        where h.org_id = new.org_id and h.job_id = new.id and h.new_status = 'WAITING_FOR_APPROVAL'
        order by h.id desc limit 1) h, jsonb_array_elements(h.metadata -> 'approvals') a))));
  end if;
  if more <> '' then
    facts := facts || more::jsonb;
    perform set_config('app.job_change', '', true);
  end if;
  insert into job_history (org_id, job_id, previous_status, new_status, metadata)
  values (new.org_id, new.id, case when tg_op = 'UPDATE' then old.status end, new.status, facts);
  return null;
end
$$;

create or replace trigger job_record after insert or update of status on job
  for each row execute function job_record();
