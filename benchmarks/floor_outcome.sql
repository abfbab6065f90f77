-- The second commit of a step, bare: the outcome, event and audit entry, both heads.
with written as (
  update job set checkpoint = $4::text::jsonb, checkpoint_mac = $5, write_seq = write_seq + 1, updated_at = clock_timestamp()
  where org_id = $1 and id = $3),
settled as (
  update tool_call set status = 'completed', result = $7::text::jsonb, finished_at = clock_timestamp()
  where org_id = $1 and id = $6),
happened as (
  insert into event (org_id, session_id, seq, type, job_id, data, created_at)
  values ($1, $2, $10, 'step_completed', $3, '{"step": 1, "calls": [{"id": "0", "tool": "effect"}]}', clock_timestamp())),
proven as (
  insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
  values ($1, $2, $10, 2, 'step_completed', $3, $9, $8, $8, clock_timestamp()))
update session_head set event_seq = $10, audit_seq = $10, audit_hash = $8, last_activity_at = clock_timestamp()
where org_id = $1 and session_id = $2
