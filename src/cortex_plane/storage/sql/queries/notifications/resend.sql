update notification n
set status = 'pending', attempts = 0, next_attempt_at = plane_now(),
  desired_version = greatest(n.desired_version, n.rendered_version + 1)
from (select p.org_id, p.id, a.session_id, a.job_id from notification p
  left join approval_request a on a.org_id = p.org_id and a.id = p.approval_id where p.id = $1) r
where n.org_id = r.org_id and n.id = r.id and n.status = 'dead'
returning r.session_id, r.job_id
