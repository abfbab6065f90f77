select content from stored_result where job_id = $1 and id = $2
