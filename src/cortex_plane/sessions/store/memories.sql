-- name: list_page
select number, message_seq, summary, facts, job_id, created_at
from session_memory where session_id = $1 and number < coalesce($2, 9223372036854775807)
order by number desc
limit $3


-- name: of_job
select coalesce(checkpoint #>> '{memory_context,conversation_summary}', '') as summary,
  coalesce(checkpoint #> '{memory_context,accumulated_facts}', '[]') as facts
from job where id = $1
