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
