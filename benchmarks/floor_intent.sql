-- The first commit of a step, bare: the response, its call, event and audit entry, both heads.
with written as (
  update job set checkpoint = $4::text::jsonb, checkpoint_mac = $5, write_seq = write_seq + 1, updated_at = clock_timestamp()
  where org_id = $1 and id = $3),
recorded as (
  insert into step (org_id, job_id, step_index, message_seq, response, prompt_tokens, completion_tokens, started_at,
    created_at)
  values ($1, $3, $6, 0, $7::text::jsonb, 10, 10, clock_timestamp(), clock_timestamp())),
called as (
  insert into tool_call (org_id, id, job_id, step_index, position, tool_name, tool_digest, arguments, input_hash,
    read_only, on_uncertain, verdict, rule, status, dispatch_before, settle_after, created_at)
  values ($1, $8, $3, $6, 0, 'effect', repeat('a', 64), $9::text::jsonb, $10, false, 'retry_with_key', 'allow',
    'setting:side_effects=allow', 'intended', clock_timestamp(), clock_timestamp(), clock_timestamp())),
happened as (
  insert into event (org_id, session_id, seq, type, job_id, data, created_at)
  values ($1, $2, $12, 'step', $3, '{"step": 1, "text": "", "calls": [{"id": "0", "tool": "effect"}]}', clock_timestamp())),
proven as (
  insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
  values ($1, $2, $12, 2, 'step_responded', $3, $11, $10, $10, clock_timestamp()))
update session_head set event_seq = $12, audit_seq = $12, audit_hash = $10, last_activity_at = clock_timestamp()
where org_id = $1 and session_id = $2
