-- The rows of a further message, bare: the head moves, a message, an event, an audit entry, which names some job.
with head as (
  update session_head
  set message_seq = $3::bigint, event_seq = $3::bigint + 1, audit_seq = $3 + 3, audit_hash = $4, last_activity_at = now()
  where org_id = $1 and session_id = $2
), said as (
  insert into message (org_id, session_id, seq, role, text) values ($1, $2, $3, 'user', $5)
), events as (
  insert into event (org_id, session_id, seq, type, data)
  values ($1, $2, $3 + 1, 'message', '{"seq": 1, "role": "user"}')
)
insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
values ($1, $2, $3 + 3, 2, 'message_received', $2, $6, $4, $4, now())
