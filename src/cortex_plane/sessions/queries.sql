-- name: get_session
select s.id, s.kind, s.user_account_id, s.agent_id, s.status, s.context, s.title, s.origin_channel_mapping_id, s.held_at, s.hold_reason,
  s.held_by, s.end_reason, s.outside_id, s.on_behalf_by, s.revision, h.last_activity_at, s.created_at, s.updated_at, runtime_status(s) as agent_status,
  (select coalesce(jsonb_agg(jsonb_build_object(
      'atlas_id', b.atlas_id, 'version', b.version, 'digest', b.digest, 'bound_at', b.bound_at) order by b.atlas_id), '[]')
   from session_atlas b where b.org_id = s.org_id and b.session_id = s.id) as atlases
from session s join session_head h on h.org_id = s.org_id and h.session_id = s.id
where s.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by) or is_linked(s, $2))


-- name: hold_session
-- A session that was held before it was written by whom is an operator's.
update session
set held_at = coalesce(held_at, plane_now()), hold_reason = coalesce(hold_reason, $3), revision = revision + 1,
  held_by = held_by || case when held_at is not null and held_by = '{}' and $2 <> 'operator' then array['operator', $2] else array[$2::text] end
where id = $1 and not $2::text = any (held_by) and (held_at is null or held_by <> '{}' or $2 <> 'operator')
returning held_at


-- name: insert_session
with made as (
  insert into session (org_id, id, kind, user_account_id, agent_id, title, context, opened_by, context_by, status, outside_id, outside_by,
    on_behalf_by)
  values ($1, $2, $3, $4, $5, $6, $7, $8, case when $7::jsonb = '{}' then '{}' else array[$9::uuid] end, $10, $11::text,
    case when $11::text is not null then $9::uuid end, $12::uuid)
)
insert into session_head (org_id, session_id) values ($1, $2)


-- name: list_sessions
select s.id, s.kind, s.user_account_id, s.agent_id, s.status, s.context, s.title, s.origin_channel_mapping_id, s.held_at, s.hold_reason,
  s.held_by, s.end_reason, s.outside_id, s.on_behalf_by, s.revision, h.last_activity_at, s.created_at, s.updated_at, runtime_status(s) as agent_status,
  (select coalesce(jsonb_agg(jsonb_build_object(
      'atlas_id', b.atlas_id, 'version', b.version, 'digest', b.digest, 'bound_at', b.bound_at) order by b.atlas_id), '[]')
   from session_atlas b where b.org_id = s.org_id and b.session_id = s.id) as atlases
from session s join session_head h on h.org_id = s.org_id and h.session_id = s.id
where ($1::timestamptz is null or (s.created_at, s.id) < ($1, $2::uuid))
  and ($4::uuid is null or s.user_account_id = $4 or s.opened_by = $4)
  and ($5::uuid is null or s.user_account_id = $5)
  and ($6::text is null or s.status = $6)
  and ($7::uuid is null or s.agent_id = $7)
  and ($8::text is null or s.outside_id = $8)
order by s.created_at desc, s.id desc
limit $3


-- name: find_outside_session
-- The open session that an identity opened with an agent under this outside id, for this person ($4), and whether its job is over.
select s.id, j.status in ('COMPLETED', 'FAILED', 'CANCELLED') as is_over
from session s
left join job j on j.org_id = s.org_id and j.session_id = s.id and j.kind = 'external'
where s.agent_id = $1 and s.outside_by = $2 and s.outside_id = $3 and s.user_account_id is not distinct from $4::uuid
  and s.status <> 'TERMINATED'


-- name: find_last_outside_session
-- The newest session, open or not, that an identity opened with an agent under this outside id for this person ($4),
-- and whether its external job was cancelled:
-- its agent completes it or lets it fail.
select s.id, coalesce(j.status = 'CANCELLED', false) as is_cancelled,
  s.status = 'TERMINATED' or coalesce(j.status in ('COMPLETED', 'FAILED', 'CANCELLED'), false) as is_over
from session s
left join job j on j.org_id = s.org_id and j.session_id = s.id and j.kind = 'external'
where s.agent_id = $1 and s.outside_by = $2 and s.outside_id = $3 and s.user_account_id is not distinct from $4::uuid
order by s.created_at desc, s.id desc limit 1


-- name: lock_session
-- First in the lock order: a termination and a new job cannot overlook each other.
select status, kind, agent_id, revision, held_at, held_by, end_reason,
  extract(epoch from plane_now() - paused_at)::double precision as paused_seconds
from session
where id = $1 and ($2::uuid is null or $2 in (user_account_id, opened_by))
for no key update


-- name: open_conversation
select id from session where user_account_id = $1 and agent_id = $2 and kind = 'conversation' and status <> 'TERMINATED'


-- name: release_session
update session
set held_at = case when $2::text is null or held_by <@ array[$2] then null else held_at end,
  hold_reason = case when $2::text is null or held_by <@ array[$2] then null else hold_reason end,
  held_by = case when $2::text is null then '{}' else array_remove(held_by, $2) end, revision = revision + 1
where id = $1 and held_at is not null
returning case when held_at is null then plane_now() end


-- name: list_long_paused
select id from session where paused_at <= plane_now() - make_interval(secs => $1) order by paused_at limit $2


-- name: look_again
-- A session that its agent ended still has an open job.
update session set idle_check_at = plane_now() + interval '1 second' where id = $1


-- name: set_session_status
update session set status = $2, revision = revision + 1 where id = $1


-- name: update_session
update session
set title = case when $2::text is null then title else nullif($2, '') end, context = coalesce($3, context),
    context_by = case when $3::jsonb is null or $4::uuid = any (context_by) then context_by else context_by || $4 end,
    revision = revision + 1, updated_at = plane_now()
where id = $1


-- name: went_idle
-- Looks again later where somebody said something meanwhile or a job is open; true where the session is idle now.
with looked as (
  select s.org_id, s.id, h.last_activity_at + make_interval(secs => coalesce(
      (v.resource_limits ->> 'idle_timeout_seconds')::double precision, 86400)) as idle_at,
    make_interval(secs => coalesce((v.resource_limits ->> 'idle_timeout_seconds')::double precision, 86400)) as patience,
    exists (
      select from job j where j.org_id = s.org_id and j.session_id = s.id
        and j.status not in ('COMPLETED', 'FAILED', 'CANCELLED')) as busy
  from session s
  join session_head h on h.org_id = s.org_id and h.session_id = s.id
  join agent a on a.org_id = s.org_id and a.id = s.agent_id
  join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
  where s.id = $1 and s.status = 'ACTIVE' and s.idle_check_at <= plane_now())
update session s
set idle_check_at = case when l.busy then plane_now() + l.patience else greatest(l.idle_at, plane_now()) end
from looked l where s.id = l.id and s.org_id = l.org_id
returning case when not l.busy and l.idle_at <= plane_now() then plane_now() end


-- name: list_messages
select seq, role, text, author_id, channel_mapping_id, job_id, created_at
from message where session_id = $1 and seq > $2
order by seq
limit $3


-- name: add_operator_words
select add_operator_words($1, $2, $3, $4, $5)


-- name: list_memories
select number, message_seq, summary, facts, job_id, created_at
from session_memory where session_id = $1 and number < coalesce($2, 9223372036854775807)
order by number desc
limit $3


-- name: list_job_memories
select coalesce(whole.checkpoint #>> '{memory_context,conversation_summary}', '') as summary,
  coalesce(whole.checkpoint #> '{memory_context,accumulated_facts}', '[]') as facts
from job j cross join lateral whole_checkpoint(j.checkpoint, j.memory) whole (checkpoint) where j.id = $1


-- name: approval_events
-- What happened to approvals anywhere in the org within the last seconds, oldest first; of too many the newest.
select session_id, seq, type, job_id, data, created_at
from (
  select e.session_id, e.seq, e.type, e.job_id, e.data, e.created_at
  from event e
  where e.type in (
      'approval_requested', 'approval_joined', 'approval_edited', 'approval_decided', 'approval_expired',
      'approval_cancelled', 'approval_reminded', 'approval_escalated', 'approval_voted', 'approval_delegated',
      'effect_settled')
    and e.created_at > (select plane_now()) - make_interval(secs => $1)
  order by e.created_at desc, e.session_id desc, e.seq desc
  limit $2) lately
order by created_at, session_id, seq


-- name: fresh_events
-- What is new in any of these sessions, each with its own number to start after.
select w.session_id, e.seq, e.type, e.job_id, e.data, e.created_at, (select o.settings -> 'redact' from org o) as redact
from unnest($1::uuid[], $2::bigint[]) w (session_id, after)
join session_head h on h.session_id = w.session_id and h.event_seq > w.after
cross join lateral events_after(w.session_id, null, w.after, $3) e
order by w.session_id, e.seq


-- name: latest_event
select event_seq from session_head where session_id = $1


-- name: list_events_after
select seq, type, job_id, data, created_at, (select o.settings -> 'redact' from org o) as redact
from events_after($1, $2, $3, $4)


-- name: gate_events
-- What gates did in a job, the newest first. Of a long session only the newest events are looked at.
select e.seq, e.type, e.job_id, e.data, e.created_at
from event e
where e.org_id = $1 and e.session_id = $2 and e.seq > $3 and e.type = any ($5::text[])
  and (e.job_id = $4 or e.job_id is null)
order by e.seq desc
limit $6


-- name: get_session_state
select org_id, session_id as id, version, text, mac, saved_at from session_state where session_id = $1


-- name: lock_external_session
-- Whoever writes its state: the identity that opened it, which is not the person whom a service named.
select s.kind, s.status,
  coalesce(s.outside_by = $3, s.opened_by = $4 or (s.on_behalf_by is null and s.user_account_id = $3), false) as is_opener
from session s
where s.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))
for no key update


-- name: save_session_state
-- No row where another version than the one to replace is there.
insert into session_state (org_id, session_id, version, text, mac)
select $1, $2, $3, $4, $5
where $3 = 1 or exists (select from session_state where org_id = $1 and session_id = $2)
on conflict (org_id, session_id) do update
set version = excluded.version, text = excluded.text, mac = excluded.mac, saved_at = plane_now()
where session_state.version = excluded.version - 1
returning version
