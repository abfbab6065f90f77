-- Whoever changes several requests waits for their messages one after the other: here nobody waits while holding one.
update notification n set taken_until = plane_now() + $3::interval
where n.lane = $2 and n.id in (
  select o.id from notification o
  where o.lane = $2 and o.taken_by = $1 and o.taken_until < plane_now() + $3::interval * 0.75
  for no key update skip locked)
