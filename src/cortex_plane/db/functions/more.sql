-- What a write of an attempt may hold besides the rows that every step has. Each key of p_more belongs to one noun, whose
-- function writes its rows; they run under the job's lock and before the session's head is locked.

create or replace function record_more(p_org uuid, p_job uuid, p_session uuid, p_more jsonb, p_now timestamptz)
  returns boolean language plpgsql set search_path = public, pg_temp as $$
begin
  if p_more ? 'usage' then
    perform record_usage(p_org, p_job, p_session, p_more -> 'usage', p_now);
  end if;
  if p_more ? 'memory' then
    perform record_memory(p_org, p_job, p_session, p_more -> 'memory', p_now);
  end if;
  if p_more ? 'gates' then
    perform record_gates(p_org, p_session, p_more -> 'gates', p_now);
  end if;
  if p_more ? 'journal' then
    perform record_journal(p_org, p_job, p_more -> 'journal', p_now);
  end if;
  if p_more ? 'end_session' then
    update session s set end_reason = coalesce(s.end_reason, p_more ->> 'end_session'), idle_check_at = p_now
    where s.org_id = p_org and s.id = p_session and s.status <> 'TERMINATED';
  end if;
  -- Last, because it may append to the session, whose head is locked after everything else.
  if p_more ? 'waits' then
    perform record_waits(p_org, p_job, p_session, p_more -> 'waits', p_now);
  end if;
  return true;
end
$$;
