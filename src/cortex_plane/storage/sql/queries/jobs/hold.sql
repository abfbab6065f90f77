-- A job that a worker runs keeps running to its boundary; one that only waits for a worker is paused at once.
update job
set holds = holds || $2::text, held_at = coalesce(held_at, plane_now()), runnable_at = null
where id = $1 and not $2 = any (holds)
returning status = 'RUNNING' and worker_id is null as pause_now
