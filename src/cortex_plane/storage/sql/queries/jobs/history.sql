select previous_status, new_status, metadata, created_at from job_history where job_id = $1 order by id
