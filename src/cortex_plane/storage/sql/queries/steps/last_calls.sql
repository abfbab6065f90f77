-- Of the step that is under way, or of the last one.
select id, job_id, step_index, position, tool_name, tool_digest, arguments, read_only, on_uncertain, status, attempt,
  encode(input_hash, 'hex') as input_hash, edited,
  dispatch_before, settle_after, result, result_id, error, settled_by, created_at, finished_at
from tool_call
where job_id = $1 and step_index = (select max(step_index) from tool_call where job_id = $1)
order by position
