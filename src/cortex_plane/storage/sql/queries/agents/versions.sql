select version, model_config, skill_config, resource_limits, created_by, created_at
from agent_version where agent_id = $1 and ($2::integer is null or version < $2)
order by version desc
limit $3
