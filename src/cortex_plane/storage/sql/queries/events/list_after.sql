select seq, type, job_id, data, created_at from events_after($1, $2, $3, $4)
