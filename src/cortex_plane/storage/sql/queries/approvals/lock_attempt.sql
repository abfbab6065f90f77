-- The job of an attempt that is about to ask, under its lock; no row: the attempt has lost it, or the write was made.
select j.session_id, j.caused_by, c.causes, c.caused, j.cancel_requested_at is not null as cancelled,
  s.user_account_id as owner_id, plane_now() as now
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
cross join lateral call_causes(j.org_id, j.id, $5, '{}') c
where j.id = $1 and j.worker_id = $2 and j.epoch = $3 and j.write_seq = $4
for no key update of j
