select a.id, a.team_id, a.name, a.slug, a.status, a.role, a.description, a.channel_permissions, a.config_version,
  v.model_config, v.skill_config, v.resource_limits, a.revision, a.created_at, a.updated_at
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where a.id = $1 or a.slug = $2
