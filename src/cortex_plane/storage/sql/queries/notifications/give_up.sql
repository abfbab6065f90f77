update notification n
set attempts = $3, last_error = $4, taken_by = null, taken_until = null, status = 'dead', next_attempt_at = null
where n.id = $1 and n.taken_by = $2
returning n.id
