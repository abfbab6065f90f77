-- Archived agents are hidden unless they are asked for.
select a.id, a.team_id, a.name, a.slug, a.status, a.role, a.description, a.channel_permissions, a.config_version,
  v.model_config, v.skill_config, v.resource_limits, a.revision, a.created_at, a.updated_at
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and (case when $4::text is null then a.status <> 'ARCHIVED' else a.status = $4 end)
order by a.created_at desc, a.id desc
limit $3
