-- The commit of a code agent's step, bare: the job, its journal, the audit entry, the session's head.
with written as (
  update job set checkpoint = $4::text::jsonb, checkpoint_mac = $5, write_seq = write_seq + 1, updated_at = clock_timestamp()
  where org_id = $1 and id = $3),
kept as (
  insert into journal_entry (org_id, job_id, key, position, kind, name, input_hash, status, result, created_at, finished_at)
  values ($1, $3, 'effect#' || $9::bigint, $9, 'step', 'effect', $7, 'done', $6::text::jsonb, clock_timestamp(), clock_timestamp())),
proven as (
  insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
  values ($1, $2, $9, 2, 'step_completed', $3, $8, $7, $7, clock_timestamp()))
update session_head set audit_seq = $9, audit_hash = $7, last_activity_at = clock_timestamp()
where org_id = $1 and session_id = $2
