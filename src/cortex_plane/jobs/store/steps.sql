-- name: answer
update tool_call
set status = $2, result = $3, error = $4, settled_by = $5,
  finished_at = case when $2 in ('completed', 'failed') then plane_now() end
where id = $1 and status = 'uncertain'
returning id


-- name: get_call
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call where job_id = $1 and id = $2


-- name: last_calls
-- Of the step that is under way, or of the last one.
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call
where job_id = $1 and step_index = (select max(step_index) from tool_call where job_id = $1)
order by position


-- name: list_steps
select s.step_index, s.response ->> 'text' as text, s.response ->> 'model' as model,
  s.response ->> 'stop_reason' as stop_reason, s.prompt_tokens, s.completion_tokens, s.started_at, s.created_at,
  coalesce((
    select jsonb_agg(jsonb_build_object(
      'id', c.id, 'tool_name', c.tool_name, 'arguments', c.arguments, 'status', c.status, 'read_only', c.read_only,
      'attempt', c.attempt, 'result', c.result, 'result_id', c.result_id, 'error', c.error,
      'settled_by', c.settled_by) order by c.position)
    from tool_call c where c.job_id = s.job_id and c.step_index = s.step_index), '[]') as calls
from step s
where s.job_id = $1 and s.step_index > $2
order by s.step_index
limit $3


-- name: open_calls
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call where job_id = $1 and finished_at is null order by step_index, position


-- name: said
select seq, role, text, job_id from message where session_id = $1 and seq > $2 and seq <= $3 order by seq


-- name: stored_result
select content from stored_result where job_id = $1 and id = $2
