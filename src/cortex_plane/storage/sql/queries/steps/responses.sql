select step_index, message_seq, response from step where job_id = $1 order by step_index
