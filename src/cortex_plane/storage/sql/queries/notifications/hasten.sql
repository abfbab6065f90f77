-- What somebody has taken or changes at this moment finds its own time.
with waiting as (
  select n.id from notification n
  where n.org_id = $1 and n.connection_id = $2 and n.status = 'pending' and n.taken_by is null
  order by n.id
  for no key update skip locked)
update notification n set next_attempt_at = least(n.next_attempt_at, plane_now()), attempts = 0
from waiting w where n.org_id = $1 and n.id = w.id
