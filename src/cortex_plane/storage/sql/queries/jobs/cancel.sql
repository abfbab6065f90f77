-- What nobody runs ends at once.
update job
set status = 'CANCELLED', open_approvals = 0, error_message = $2, runnable_at = null, next_retry_at = null, wake_at = null,
  holds = '{}', held_at = null,
  cancel_requested_at = coalesce(cancel_requested_at, plane_now())
where id = $1 and worker_id is null and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning session_id
