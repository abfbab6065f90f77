-- The rows of a further message: the head moves, a message, an event, an entry.
with head as (
  update floor.session_head
  set message_seq = $3, event_seq = event_seq + 1, audit_seq = audit_seq + 1, audit_hash = $4, last_activity_at = now()
  where org_id = $1 and session_id = $2
), said as (
  insert into floor.message (org_id, session_id, seq, role, text) values ($1, $2, $3, 'user', $5)
), events as (
  insert into floor.event (org_id, session_id, seq, type, data)
  values ($1, $2, $3 + 1, 'message', '{"seq": 1, "role": "user"}')
)
insert into floor.audit_entry (org_id, session_id, seq, action, body, body_hash, hash, created_at)
values ($1, $2, $3 + 3, 'message_received', $6, $4, $4, now())
