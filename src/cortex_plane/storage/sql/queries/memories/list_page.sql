select number, message_seq, summary, facts, job_id, created_at
from session_memory where session_id = $1 and number < coalesce($2, 9223372036854775807)
order by number desc
limit $3
