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
