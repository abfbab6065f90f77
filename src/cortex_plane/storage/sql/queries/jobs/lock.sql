select j.session_id, j.kind, j.status, j.holds, j.worker_id is not null as leased, j.cancel_requested_at is not null as cancelled
from job j
where j.id = $1 and ($2::uuid is null or exists (
  select from session s where s.org_id = j.org_id and s.id = j.session_id and $2 in (s.user_account_id, s.opened_by)))
for no key update of j
