-- name: cancel
-- What nobody runs ends at once.
update job
set status = 'CANCELLED', open_approvals = 0, error_message = $2, runnable_at = null, next_retry_at = null, wake_at = null,
  holds = '{}', held_at = null,
  cancel_requested_at = coalesce(cancel_requested_at, plane_now())
where id = $1 and worker_id is null and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning session_id


-- name: cancel_open
-- Ordered, so that two terminations lock the same jobs in the same order. What a worker runs ends at its next safe point.
with open_jobs as (
  select id, worker_id from job where session_id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
  order by id for no key update),
asked as (
  update job j set cancel_requested_at = coalesce(j.cancel_requested_at, plane_now()), cancel_reason = $2
  from open_jobs o where j.id = o.id and o.worker_id is not null)
update job j
set status = 'CANCELLED', open_approvals = 0, error_message = $2, runnable_at = null, next_retry_at = null, wake_at = null,
  holds = '{}', held_at = null
from open_jobs o where j.id = o.id and o.worker_id is null
returning j.id


-- name: checkpoint
select checkpoint from job where id = $1


-- name: fail
update job
set status = 'FAILED', error_message = $2, holds = '{}', held_at = null, runnable_at = null, wake_at = null,
  open_approvals = 0
where id = $1 and worker_id is null and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning id


-- name: get
select j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.status, j.holds,
  j.holds <> '{}' and j.worker_id is not null as pending_pause,
  j.cancel_requested_at is not null and j.finished_at is null as pending_cancel, j.payload, j.result, j.step_index,
  j.running_seconds, j.epoch, j.deaths, j.wake_at, j.retry_count, j.max_retries, j.next_retry_at, j.open_approvals,
  j.error_message, j.resubmitted_from, j.caused_by, j.policies, j.created_at, j.updated_at, j.finished_at
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
where j.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))


-- name: history
select previous_status, new_status, metadata, created_at from job_history where job_id = $1 order by id


-- name: hold
-- A job that a worker runs keeps running to its boundary; one that only waits for a worker is paused at once.
update job
set holds = holds || $2::text, held_at = coalesce(held_at, plane_now()), runnable_at = null
where id = $1 and not $2 = any (holds)
returning status = 'RUNNING' and worker_id is null as pause_now


-- name: insert
insert into job (org_id, id, session_id, agent_id, agent_version, kind, payload, max_retries, resubmitted_from, app,
  holds, held_at, runnable_at, caused_by, policies, status, submitted_by)
select $1, $2, s.id, a.id, a.config_version, $8, $5, $6, $7, case when $8 = 'external' then 'external' else coalesce(v.skill_config ->> 'app', 'plane') end,
  case when s.held_at is null then '{}' else array['session'] end, s.held_at,
  case when s.held_at is null then plane_now() end, $9::uuid, $10::jsonb,
  case when $8 = 'external' then 'RUNNING' else 'PENDING' end, $11::uuid
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
join session s on s.org_id = a.org_id and s.id = $3
where a.id = $4


-- name: lift
-- Lifts these holds. With the last one the job may be claimed again, when its time has come.
update job
set holds = array(select h from unnest(holds) h where not h = any ($2::text[])),
  held_at = case when holds <@ $2::text[] then null else held_at end,
  runnable_at = case when holds <@ $2::text[] and worker_id is null then case status
    when 'PENDING' then created_at when 'RETRY' then next_retry_at when 'SLEEPING' then wake_at end end
where id = $1 and holds && $2::text[] and status not in ('PAUSED', 'COMPLETED', 'FAILED', 'CANCELLED')
returning id


-- name: list_page
select j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.status, j.holds,
  j.holds <> '{}' and j.worker_id is not null as pending_pause,
  j.cancel_requested_at is not null and j.finished_at is null as pending_cancel, j.payload, j.result, j.step_index,
  j.running_seconds, j.epoch, j.deaths, j.wake_at, j.retry_count, j.max_retries, j.next_retry_at, j.open_approvals,
  j.error_message, j.resubmitted_from, j.caused_by, j.policies, j.created_at, j.updated_at, j.finished_at
from job j
where ($1::timestamptz is null or (j.created_at, j.id) < ($1, $2::uuid))
  and ($4::uuid is null or j.session_id = any (array(
    select s.id from session s where s.user_account_id = $4 or s.opened_by = $4)))
  and ($5::text is null or j.status = $5)
  and ($6::uuid is null or j.session_id = $6)
  and ($7::uuid is null or j.agent_id = $7)
order by j.created_at desc, j.id desc
limit $3


-- name: lock
select j.session_id, j.kind, j.status, j.holds, j.worker_id is not null as leased, j.cancel_requested_at is not null as cancelled
from job j
where j.id = $1 and ($2::uuid is null or exists (
  select from session s where s.org_id = j.org_id and s.id = j.session_id and $2 in (s.user_account_id, s.opened_by)))
for no key update of j


-- name: lock_open
-- Ordered, so that two requests lock the same jobs in the same order.
select id from job
where session_id = $1 and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
order by id for no key update


-- name: open_conversation
-- The job that answers a session now, if any.
select id from job
where session_id = $1 and kind = 'conversation' and status not in ('COMPLETED', 'FAILED', 'CANCELLED')


-- name: pause
update job set status = 'PAUSED' where id = $1 and status = 'RUNNING' and worker_id is null and holds <> '{}'


-- name: request_cancel
-- What a worker runs ends at its next safe point, so that no call is left without its outcome.
update job set cancel_requested_at = plane_now(), cancel_reason = $2
where id = $1 and worker_id is not null and cancel_requested_at is null
returning session_id


-- name: wake
-- A paused job goes on once nothing holds it.
update job
set holds = array(select h from unnest(holds) h where not h = any ($2::text[])),
  held_at = case when holds <@ $2::text[] then null else held_at end,
  status = case when holds <@ $2::text[] then 'RUNNING' else status end,
  runnable_at = case when holds <@ $2::text[] then plane_now() end
where id = $1 and holds && $2::text[] and status = 'PAUSED'
returning status
