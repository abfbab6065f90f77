select coalesce(sum(prompt_tokens + completion_tokens), 0)::bigint as tokens,
  coalesce(sum(cost_micros), 0)::bigint as cost_micros
from model_call where job_id = $1
