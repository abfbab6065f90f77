update notification n
set attempts = $4, last_error = $5, taken_by = null, taken_until = null,
  next_attempt_at = case when n.desired_version > $3 then plane_now() else plane_now() + $6::interval end
where n.id = $1 and n.taken_by = $2
returning n.id
