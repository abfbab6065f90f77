select j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.app, j.status, j.holds,
  j.holds <> '{}' and j.worker_id is not null as pending_pause,
  j.cancel_requested_at is not null and j.finished_at is null as pending_cancel, j.payload, j.result, j.step_index,
  j.running_seconds, j.epoch, j.deaths, j.wake_at, j.retry_count, j.max_retries, j.next_retry_at, j.open_approvals,
  j.error_message, j.resubmitted_from, j.caused_by, j.policies, j.created_at, j.updated_at, j.finished_at
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
where j.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))
