-- The job of an attempt that is about to ask, under its lock; no row: the attempt has lost it, or the write was made.
select j.session_id, j.caused_by,
  array(
    select j.caused_by where j.caused_by is not null
    union
    select m.author_id from message m
    where m.org_id = j.org_id and m.session_id = j.session_id and m.role = 'user' and m.author_id is not null
      and j.kind = 'conversation' and m.seq >= coalesce((j.payload ->> 'message_seq')::bigint, 0) and m.seq <= $5) as causes,
  j.cancel_requested_at is not null as cancelled, s.user_account_id as owner_id,
  plane_now() as now
from job j join session s on s.org_id = j.org_id and s.id = j.session_id
where j.id = $1 and j.worker_id = $2 and j.epoch = $3 and j.write_seq = $4
for no key update of j
