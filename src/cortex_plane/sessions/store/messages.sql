-- name: list_page
select seq, role, text, author_id, channel_mapping_id, job_id, created_at
from message where session_id = $1 and seq > $2
order by seq
limit $3
