with version as (
  insert into agent_version (org_id, agent_id, version, model_config, skill_config, resource_limits, created_by, created_by_id)
  values ($1, $2, 1, $9, $10, $11, $12, $13)
)
insert into agent (org_id, id, team_id, name, slug, role, description, channel_permissions)
values ($1, $2, $3, $4, $5, $6, $7, $8)
