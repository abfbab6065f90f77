-- What waits for its next try failed within the last day, which is the longest that a webhook waits. Without such a one
-- nothing was sent lately, or nobody could: then nobody knows whether it would still fail.
update channel_connection c
set disabled_at = plane_now(), disabled_reason = $2, revision = c.revision + 1, updated_at = plane_now()
where c.id = $1 and c.disabled_at is null and c.failing_since <= plane_now() - $3::interval
  and exists (
    select from notification n
    where n.org_id = c.org_id and n.connection_id = c.id and n.status = 'pending' and n.attempts > 0
      and n.last_error is not null and n.next_attempt_at > plane_now())
returning c.name, c.failing_since
