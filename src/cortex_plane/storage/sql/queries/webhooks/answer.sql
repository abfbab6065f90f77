update inbound_event set answer = $3, answered_at = plane_now()
where connection_id = $1 and event_id = $2 and answer is null
returning true
