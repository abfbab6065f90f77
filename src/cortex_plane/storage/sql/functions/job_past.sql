-- What a job has said and done so far, for whoever takes it up again: one round trip. p_read_to null: it has no messages.
create or replace function job_past(p_org uuid, p_job uuid, p_session uuid, p_read_to bigint, p_fresh boolean)
  returns table (said jsonb, steps jsonb, calls jsonb, receipts jsonb)
  language plpgsql set search_path = public, pg_temp as $$
#variable_conflict use_column
begin
  perform set_config('app.org_id', p_org::text, true);
  select coalesce(jsonb_agg(jsonb_build_object('seq', m.seq, 'role', m.role, 'text', m.text, 'job_id', m.job_id)
    order by m.seq), '[]')
  into said from message m
  where m.org_id = p_org and m.session_id = p_session and m.seq <= p_read_to;
  steps := '[]';
  calls := '[]';
  receipts := '{}';
  if not p_fresh then
    select coalesce(jsonb_agg(jsonb_build_object(
      'step_index', s.step_index, 'message_seq', s.message_seq, 'response', s.response) order by s.step_index), '[]')
    into steps from step s where s.org_id = p_org and s.job_id = p_job;
    select coalesce(jsonb_agg(jsonb_build_object(
      'id', c.id, 'job_id', c.job_id, 'step_index', c.step_index, 'position', c.position, 'tool_name', c.tool_name,
      'tool_digest', c.tool_digest, 'arguments', c.arguments, 'read_only', c.read_only, 'on_uncertain', c.on_uncertain,
      'input_hash', encode(c.input_hash, 'hex'), 'edited', c.edited, 'status', c.status, 'attempt', c.attempt,
      'dispatch_before', c.dispatch_before, 'settle_after', c.settle_after, 'result', c.result, 'result_id', c.result_id,
      'error', c.error, 'settled_by', c.settled_by, 'created_at', c.created_at, 'finished_at', c.finished_at,
      'granted', c.finished_at is null and exists (
        select from approval_grant g
        where g.org_id = c.org_id and g.call_id = c.id and g.consumed_at is not null and g.tool_digest = c.tool_digest
          and g.input_hash = c.input_hash),
      'grant_expires_at', case when c.status = 'approved' then (
        select max(g.expires_at) from approval_grant g
        where g.org_id = c.org_id and g.call_id = c.id and g.consumed_at is null) end)
      order by c.step_index, c.position), '[]')
    into calls from tool_call c where c.org_id = p_org and c.job_id = p_job;
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
