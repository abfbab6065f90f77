update job set status = 'PAUSED' where id = $1 and status = 'RUNNING' and worker_id is null and holds <> '{}'
