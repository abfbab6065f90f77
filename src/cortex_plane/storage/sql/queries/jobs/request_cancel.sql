-- What a worker runs ends at its next safe point, so that no call is left without its outcome.
update job set cancel_requested_at = plane_now(), cancel_reason = $2
where id = $1 and worker_id is not null and cancel_requested_at is null
returning session_id
