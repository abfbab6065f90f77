-- What a job has said and done so far, for whoever takes it up: one round trip. p_read_to null: it has no messages.
-- What the job's memory covers is left out: steps below p_window_step, messages up to p_window_seq. A job that has not
-- begun yet takes over the newest memory of its session, and that one says how far it goes. So what is read here does not
-- grow with the conversation. Three things are found however far back they lie: what a person asked last, the calls
-- that are still open, and those that a person said no to.
create or replace function job_past(
  p_org uuid, p_job uuid, p_session uuid, p_read_to bigint, p_fresh boolean, p_window_step integer, p_window_seq bigint)
  returns table (said jsonb, steps jsonb, calls jsonb, receipts jsonb, turned_down jsonb, memory jsonb, asked text)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform set_config('app.org_id', p_org::text, true);
  if p_fresh then
    select jsonb_build_object('message_seq', m.message_seq, 'summary', m.summary, 'facts', m.facts)
    into memory from session_memory m
    where m.org_id = p_org and m.session_id = p_session order by m.number desc limit 1;
    p_window_seq := coalesce((memory ->> 'message_seq')::bigint, p_window_seq);
  end if;
  select coalesce(jsonb_agg(jsonb_build_object('seq', m.seq, 'role', m.role, 'text', m.text, 'job_id', m.job_id,
    'by', case when m.role = 'system' then message_author(m) end) order by m.seq), '[]')
  into said from message m
  where m.org_id = p_org and m.session_id = p_session and m.seq > p_window_seq and m.seq <= p_read_to;
  if p_window_seq > 0 then
    select m.text into asked from message m
    where m.org_id = p_org and m.session_id = p_session and m.seq <= least(p_window_seq, p_read_to) and m.role = 'user'
    order by m.seq desc limit 1;
  end if;
  steps := '[]';
  calls := '[]';
  receipts := '{}';
  turned_down := '[]';
  if not p_fresh then
    select coalesce(jsonb_agg(jsonb_build_object(
      'step_index', s.step_index, 'message_seq', s.message_seq, 'response', s.response) order by s.step_index), '[]')
    into steps from step s where s.org_id = p_org and s.job_id = p_job and s.step_index >= p_window_step;
    select coalesce(jsonb_agg(jsonb_build_object(
      'id', c.id, 'job_id', c.job_id, 'step_index', c.step_index, 'position', c.position, 'tool_name', c.tool_name,
      'tool_digest', c.tool_digest, 'arguments', c.arguments, 'read_only', c.read_only, 'on_uncertain', c.on_uncertain,
      'input_hash', encode(c.input_hash, 'hex'), 'edited', c.edited, 'status', c.status, 'attempt', c.attempt,
      'dispatch_before', c.dispatch_before, 'settle_after', c.settle_after, 'result', c.result, 'result_id', c.result_id,
      'error', c.error, 'settled_by', c.settled_by, 'created_at', c.created_at, 'finished_at', c.finished_at,
      'repeats', case when c.status = 'cleared' then call_repeats(p_org, c.id) else 0 end,
      'granted', c.finished_at is null and c.granted,
      'grant_expires_at', case when c.status = 'approved' then (
        select max(g.expires_at) from approval_grant g
        where g.org_id = c.org_id and g.call_id = c.id and g.consumed_at is null) end)
      order by c.step_index, c.position), '[]')
    into calls from tool_call c
    where c.org_id = p_org and c.job_id = p_job and (c.step_index >= p_window_step or c.finished_at is null);
    select coalesce(jsonb_agg(distinct jsonb_build_array(c.tool_name, encode(c.input_hash, 'hex'))), '[]')
    into turned_down from tool_call c
    where c.org_id = p_org and c.job_id = p_job and c.turned_down;
    -- Of the calls that somebody approved and that may still be sent: as they are kept, for the worker to verify.
    select coalesce(jsonb_object_agg(c.id, jsonb_build_object(
      'body', encode(r.body, 'hex'), 'signature', encode(r.signature, 'hex'), 'key_id', k.id,
      'public_key', encode(k.public_key, 'hex'), 'sealed', encode(k.sealed, 'hex'))), '{}')
    into receipts
    from tool_call c
    cross join lateral (
      select g.approval_id from approval_grant g
      where g.org_id = c.org_id and g.call_id = c.id order by g.created_at desc limit 1) g
    join approval_receipt r on r.org_id = c.org_id and r.approval_id = g.approval_id
    join signing_key k on k.org_id = r.org_id and k.id = r.key_id
    where c.org_id = p_org and c.job_id = p_job and c.finished_at is null;
  end if;
  return next;
end
$$;
