select j.id, j.session_id, j.agent_id, j.agent_version, j.kind, j.status, j.payload, j.retry_count, j.max_retries,
  j.next_retry_at, j.open_approvals, j.error_message, j.resubmitted_from, j.created_at, j.updated_at, j.finished_at
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
where j.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))
