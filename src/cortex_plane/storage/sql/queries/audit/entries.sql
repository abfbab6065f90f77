select chain_id, session_id, seq, format, action, job_id, body, body_hash, hash, readable_time(created_at) as created_at
from audit_entry where chain_id = $1 and seq > $2
order by seq
limit $3
