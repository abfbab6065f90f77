select count(*) as calls, coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens,
  coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
  coalesce(sum(cache_read_tokens), 0)::bigint as cache_read_tokens,
  coalesce(sum(cache_write_tokens), 0)::bigint as cache_write_tokens,
  sum(cost_micros)::bigint as cost_micros, count(*) filter (where cost_micros is null) as unpriced_calls,
  coalesce(sum(seconds), 0) as seconds
from model_call where job_id = $1
