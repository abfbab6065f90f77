select seq, role, text, job_id from message where session_id = $1 and seq > $2 and seq <= $3 order by seq
