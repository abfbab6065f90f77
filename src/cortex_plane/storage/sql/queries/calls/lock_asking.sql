-- The job of a call that is about to ask, under its lock; refused where it is over or held. Whoever asks is a cause too:
-- staff may ask in sessions of others.
select j.session_id, j.caused_by, c.causes, c.caused, s.user_account_id as owner_id,
  coalesce(j.step_index, -1) + 1 as step_index, j.status, plane_now() as now
from lock_external($1, $2, $3) j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, 0, $4::uuid[]) c
