update job
set status = 'FAILED', error_message = $2, holds = '{}', held_at = null, runnable_at = null, wake_at = null,
  open_approvals = 0
where id = $1 and worker_id is null and status not in ('COMPLETED', 'FAILED', 'CANCELLED')
returning id
