insert into agent_version (org_id, agent_id, version, model_config, skill_config, resource_limits, created_by)
values ($1, $2, $3, $4, $5, $6, $7)
