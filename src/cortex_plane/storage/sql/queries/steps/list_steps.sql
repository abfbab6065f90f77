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
