update notification n
set tried_at = coalesce(n.tried_at, plane_now()), attempts = n.attempts + 1, taken_until = plane_now() + $4::interval
where n.id = $1 and n.lane = $3 and n.taken_by = $2
returning exists (
  select from notification o
  where o.lane = $3 and o.taken_by = $2 and o.id <> $1 and o.taken_until < plane_now() + $4::interval * 0.75) as others_run_out
