-- The rows of a first message, bare: account, mapping, session, head, job, message, 2 events, 4 audit entries, with
-- everything known beforehand. One statement, one commit, by a login that row-level security does not concern. The
-- job's history is written by its trigger, as always.
with account as (
  insert into user_account (org_id, id, display_name, roles) values ($1, $2, $3, '{guest}')
), mapping as (
  insert into channel_mapping (
    org_id, id, connection_id, user_account_id, channel_type, channel_user_id, verified_at, mac)
  values ($1, $4, $5, $2, 'web', $3, now(), $10)
), conversation as (
  insert into session (org_id, id, kind, user_account_id, agent_id, status, title, origin_channel_mapping_id, opened_by)
  values ($1, $6, 'conversation', $2, $7, 'ACTIVE', $8, $4, $5)
), head as (
  insert into session_head (org_id, session_id, message_seq, event_seq, audit_seq, audit_hash)
  values ($1, $6, 1, 2, 4, $10)
), work as (
  insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload)
  values ($1, $9, $6, $7, 1, 'conversation', '{"message_seq": 1}')
), said as (
  insert into message (org_id, session_id, seq, role, text, author_id, channel_mapping_id)
  values ($1, $6, 1, 'user', $8, $2, $4)
), events as (
  insert into event (org_id, session_id, seq, type, job_id, data)
  values ($1, $6, 1, 'message', $9, '{"seq": 1, "role": "user"}'), ($1, $6, 2, 'status', $9, '{"status": "PENDING"}')
)
insert into audit_entry (org_id, session_id, seq, format, action, job_id, body, body_hash, hash, created_at)
values ($1, $6, 1, 2, 'account_created', null, $11, $10, $10, now()), ($1, $6, 2, 2, 'session_created', null, $11, $10, $10, now()),
  ($1, $6, 3, 2, 'message_received', $9, $11, $10, $10, now()), ($1, $6, 4, 2, 'job_created', $9, $11, $10, $10, now())
