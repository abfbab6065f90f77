-- A conversation was compacted. Under its job's lock; at most one job of a session is a conversation's, so the number is free.
create or replace function record_memory(p_org uuid, p_job uuid, p_session uuid, p_memory jsonb, p_now timestamptz)
  returns void language sql set search_path = public, pg_temp as $$
  insert into session_memory (org_id, session_id, number, message_seq, summary, facts, job_id, created_at)
  select p_org, p_session,
    coalesce((select max(m.number) from session_memory m where m.org_id = p_org and m.session_id = p_session), 0) + 1,
    (p_memory ->> 'message_seq')::bigint, p_memory ->> 'summary', p_memory -> 'facts', p_job, p_now
$$;
