-- Shared, so that whoever enables it at this moment is waited for: what they find put off they make due. For messages nobody is
-- waited for: whoever changes their requests makes them due, and what is left taken is free when its lease has run out.
with way as (select c.id, c.disabled_at from channel_connection c where c.id = $3 for share),
free as (
  select n.id from notification n
  where n.lane = $2 and n.taken_by = $1 and n.connection_id = $3
  for no key update skip locked)
update notification n
set taken_by = null, taken_until = null, last_error = $4,
  next_attempt_at = case when w.disabled_at is null then plane_now() else plane_now() + $5::interval end
from way w, free f
where n.lane = $2 and n.id = f.id
