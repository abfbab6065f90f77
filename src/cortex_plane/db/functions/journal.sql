-- What the operations of a code agent came to since its last write: see record_more. An entry that is over stays as it is.
create or replace function record_journal(p_org uuid, p_job uuid, p_entries jsonb, p_now timestamptz)
  returns void language plpgsql set search_path = public, pg_temp as $$
begin
  insert into journal_entry (org_id, job_id, key, position, kind, name, input_hash, status, result, result_id, error,
    created_at, finished_at)
  select p_org, p_job, e.key, e.position, e.kind, e.name, decode(e.input_hash, 'hex'), e.status, e.result, e.result_id, e.error,
    p_now - make_interval(secs => coalesce(e.seconds, 0)), case when e.status <> 'open' then p_now end
  from jsonb_to_recordset(p_entries) e (
    key text, position integer, kind text, name text, input_hash text, status text, result jsonb, result_id uuid, error jsonb,
    seconds double precision)
  on conflict on constraint journal_entry_pkey do update
  set status = excluded.status, result = excluded.result, result_id = excluded.result_id, error = excluded.error,
    finished_at = excluded.finished_at
  where journal_entry.status = 'open';
end
$$;

-- The entries of one job with what they came to, wherever that stands.
drop view if exists journal_shown;
create view journal_shown with (security_invoker = true) as
  select e.org_id, e.job_id, e.key, e.position, e.kind, e.name, encode(e.input_hash, 'hex') as input_hash,
    case
      when e.status <> 'open' or c.id is null then e.status
      when c.finished_at is null then 'open'
      when e.kind = 'approval' or c.status = 'completed' or (c.status = 'answered' and c.error is null) then 'done'
      else 'failed' end as status,
    case
      when e.kind = 'model' and e.status = 'done' then s.response -> 'text'
      when e.kind = 'approval' and e.status = 'open' and (c.finished_at is not null or c.status = 'approved') then
        jsonb_build_object('approved', c.status in ('approved', 'completed'), 'by', r.resolved_by_name,
          'reason', coalesce(case when c.status = 'answered' then c.result #>> '{}' end, r.resolution_reason, c.error))
      when e.kind in ('tool', 'step') and (c.status = 'completed' or (c.status = 'answered' and c.error is null)) then c.result
      else e.result end as result,
    coalesce(e.result_id, case when c.status = 'completed' then c.result_id end) as result_id,
    case
      when e.error is not null or e.kind not in ('tool', 'step') or c.error is null or c.status not in ('failed', 'rejected', 'answered')
        then e.error
      when c.status = 'answered' then
        jsonb_build_object('type', 'ToolDenied', 'message', c.error, 'code', 'tool_answered', 'answer', c.result)
      else jsonb_build_object('message', c.error, 'type', case
        when e.kind = 'step' then 'StepNotDone' when c.status = 'rejected' then 'ToolDenied' else 'ToolFailed' end) end as error,
    e.created_at, coalesce(e.finished_at, c.finished_at) as finished_at
  from journal_entry e
  -- A step that may be repeated has no call, and is never open.
  left join tool_call c on (e.kind in ('tool', 'approval') or (e.kind = 'step' and e.status = 'open')) and c.org_id = e.org_id and c.job_id = e.job_id
    and c.step_index = e.position and c.position = 0
  left join step s on e.kind = 'model' and s.org_id = e.org_id and s.job_id = e.job_id and s.step_index = e.position
  left join lateral (
    select a.resolved_by_name, a.resolution_reason
    from approval_invocation i join approval_request a on a.org_id = i.org_id and a.id = i.approval_id
    where e.kind = 'approval' and i.org_id = e.org_id and i.call_id = c.id
    order by i.created_at desc limit 1) r on true;
grant select on journal_shown to cortex_app;

-- Everything that a code agent's job goes on from: its entries, and what it heard of the signals that it waits for. A wait that
-- was begun and not yet written down as one, because the job waits for people first or its worker died, hears as well: whatever
-- was sent in time.
create or replace function job_journal(p_org uuid, p_job uuid) returns table (entries jsonb, arrived jsonb)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform set_config('app.org_id', p_org::text, true);
  select coalesce(jsonb_agg(to_jsonb(e) - 'org_id' - 'job_id' order by e.position), '[]') into entries
  from journal_shown e where e.org_id = p_org and e.job_id = p_job;
  select coalesce(jsonb_object_agg(w.entry, w.payload), '{}') into arrived
  from (
    select w.entry, w.payload from job_wait w
    where w.org_id = p_org and w.job_id = p_job and w.arrived_at is not null
    union all
    select e.key, s.payload
    from journal_entry e join signal s on s.org_id = e.org_id and s.name = e.name and s.key = e.result ->> 'key'
    where e.org_id = p_org and e.job_id = p_job and e.kind = 'wait' and e.status = 'open'
      and s.created_at <= coalesce((e.result ->> 'until')::timestamptz, 'infinity')
      and not exists (
        select from job_wait h
        where h.org_id = p_org and h.job_id = p_job and h.entry = e.key and h.arrived_at is not null)) w;
  return next;
end
$$;
