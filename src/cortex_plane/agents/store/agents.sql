-- name: delete
delete from agent where id = $1 returning id


-- name: get
select a.id, a.team_id, a.name, a.slug, a.status, a.role, a.description, a.channel_permissions, a.config_version,
  v.model_config, v.skill_config, v.resource_limits, a.revision, a.created_at, a.updated_at
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where a.id = $1 or a.slug = $2


-- name: insert
with version as (
  insert into agent_version (org_id, agent_id, version, model_config, skill_config, resource_limits, created_by, created_by_id)
  values ($1, $2, 1, $9, $10, $11, $12, $13)
)
insert into agent (org_id, id, team_id, name, slug, role, description, channel_permissions)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: insert_version
insert into agent_version (org_id, agent_id, version, model_config, skill_config, resource_limits, created_by, created_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: list_page
-- Archived agents are hidden unless they are asked for.
select a.id, a.team_id, a.name, a.slug, a.status, a.role, a.description, a.channel_permissions, a.config_version,
  v.model_config, v.skill_config, v.resource_limits, a.revision, a.created_at, a.updated_at
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and (case when $4::text is null then a.status <> 'ARCHIVED' else a.status = $4 end)
order by a.created_at desc, a.id desc
limit $3


-- name: lock
-- Holds the agent still while a change to it is decided.
select id, revision, config_version from agent where id = $1 or slug = $2 for no key update


-- name: update
update agent
set team_id = coalesce($2, team_id), name = coalesce($3, name), role = coalesce($4, role),
    status = coalesce($5, status),
    description = case when $6::text is null then description else nullif($6, '') end,
    channel_permissions = coalesce($7, channel_permissions), config_version = $8,
    revision = revision + 1, updated_at = plane_now()
where id = $1


-- name: usage
-- How much uses an agent; beyond a thousand it does not matter how much more.
select (select count(*) from (select from session where agent_id = $1 limit 1000) s) as sessions,
  (select count(*) from (select from job where agent_id = $1 limit 1000) j) as jobs


-- name: versions
select version, model_config, skill_config, resource_limits, created_by, created_at
from agent_version where agent_id = $1 and ($2::integer is null or version < $2)
order by version desc
limit $3
