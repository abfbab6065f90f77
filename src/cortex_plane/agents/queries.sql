-- name: delete_agent
delete from agent where id = $1 returning id


-- name: get_agent
select a.id, a.team_id, a.name, a.slug, a.status, a.role, a.description, a.channel_permissions, a.config_version,
  v.model_config, v.skill_config, v.resource_limits, a.repeats_steps and v.skill_config ? 'run' as repeats_steps, a.revision,
  a.created_at, a.updated_at
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where a.id = $1 or a.slug = $2


-- name: insert_agent
with version as (
  insert into agent_version (org_id, agent_id, version, model_config, skill_config, resource_limits, created_by, created_by_id)
  values ($1, $2, 1, $9, $10, $11, $12, $13)
)
insert into agent (org_id, id, team_id, name, slug, role, description, channel_permissions, repeats_steps)
values ($1, $2, $3, $4, $5, $6, $7, $8, false)


-- name: insert_agent_version
insert into agent_version (org_id, agent_id, version, model_config, skill_config, resource_limits, created_by, created_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: list_agents
-- Archived agents are hidden unless they are asked for.
select a.id, a.team_id, a.name, a.slug, a.status, a.role, a.description, a.channel_permissions, a.config_version,
  v.model_config, v.skill_config, v.resource_limits, a.repeats_steps and v.skill_config ? 'run' as repeats_steps, a.revision,
  a.created_at, a.updated_at
from agent a
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = a.config_version
where ($1::timestamptz is null or (a.created_at, a.id) < ($1, $2::uuid))
  and (case when $4::text is null then a.status <> 'ARCHIVED' else a.status = $4 end)
order by a.created_at desc, a.id desc
limit $3


-- name: lock_agent
-- Holds the agent still while a change to it is decided.
select id, revision, config_version from agent where id = $1 or slug = $2 for no key update


-- name: update_agent
update agent
set team_id = coalesce($2, team_id), name = coalesce($3, name), role = coalesce($4, role),
    status = coalesce($5, status),
    description = case when $6::text is null then description else nullif($6, '') end,
    channel_permissions = coalesce($7, channel_permissions), config_version = $8,
    revision = revision + 1, updated_at = plane_now()
where id = $1


-- name: agent_usage
-- How much uses an agent; beyond a thousand it does not matter how much more.
select (select count(*) from (select from session where agent_id = $1 limit 1000) s) as sessions,
  (select count(*) from (select from job where agent_id = $1 limit 1000) j) as jobs


-- name: list_agent_versions
select version, model_config, skill_config, resource_limits, created_by, created_at
from agent_version where agent_id = $1 and ($2::integer is null or version < $2)
order by version desc
limit $3


-- name: known_risks
select n.name, k.risk from unnest($2::text[]) n (name) cross join lateral (select known_risk($1, n.name) as risk) k
where k.risk is not null


-- name: list_tools
-- The newest version of each tool.
select distinct on (app, name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
  server, remote_name, implementation, hints, declares_risk
from known_tool order by app, name, published_at desc


-- name: get_tools
-- The newest version of the tools of this name, in each app that has one.
select distinct on (app) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
  server, remote_name, implementation, hints, declares_risk
from known_tool where name = $1 and ($2::text is null or app = $2)
order by app, published_at desc


-- name: newest_tools
select app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
  implementation, hints, declares_risk
from known_tool where app = $1 and name = $2
order by published_at desc
limit 1


-- name: list_server_tools
-- The newest version of each tool that a server of an app was last known to offer.
select * from (
  select distinct on (name) app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain,
    server, remote_name, implementation, hints, declares_risk
  from known_tool where app = $1
  order by name, published_at desc
) newest where server = $2


-- name: publish_tools
-- A version that is known and newest already stays as it is. Returns the digest of the one before, where this is newer.
with newest as (
  select v.digest from tool_version v where v.app = $1 and v.name = $2 order by v.published_at desc limit 1
), made as (
  insert into tool_version (
    app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
    implementation, hints, declares_risk)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)
  on conflict (app, name, digest) do update set declares_risk = excluded.declares_risk,
    published_at = case when excluded.digest is distinct from (select n.digest from newest n) then plane_now()
      else tool_version.published_at end
    where excluded.digest is distinct from (select n.digest from newest n)
      or excluded.declares_risk <> tool_version.declares_risk
  returning digest
)
select (select n.digest from newest n where n.digest <> made.digest) as before from made


-- name: publish_org_tools
-- As above, of a remote worker of this org.
with newest as (
  select v.digest from org_tool_version v where v.app = $1 and v.name = $2 order by v.published_at desc limit 1
), made as (
  insert into org_tool_version (
    app, name, digest, description, parameters, read_only, risk, timeout_seconds, on_uncertain, server, remote_name,
    implementation, hints, declares_risk, org_id)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
  on conflict (org_id, app, name, digest) do update set declares_risk = excluded.declares_risk, published_at = plane_now()
    where excluded.digest is distinct from (select n.digest from newest n)
      or excluded.declares_risk <> org_tool_version.declares_risk
  returning digest
)
select (select n.digest from newest n where n.digest <> made.digest) as before from made


-- name: forget_org_tools
-- The newest versions of an app stay, and those about which somebody is still asked.
delete from org_tool_version v
where v.app = any ($1::text[])
  and (v.app, v.name, v.digest) not in (
    select k.app, k.name, k.digest from (
      select o.app, o.name, o.digest, row_number() over (partition by o.app order by o.published_at desc) as place
      from org_tool_version o where o.app = any ($1::text[])) k
    where k.place <= $2)
  and not exists (
    select from approval_request r where r.tool_name = v.name and r.tool_digest = v.digest and r.status = 'pending')


-- name: platform_tools
-- The newest version of each tool in these apps that workers at the database published.
select distinct on (v.app, v.name) v.app, v.name, v.digest
from tool_version v
where v.app = any ($1::text[])
order by v.app, v.name, v.published_at desc


-- name: list_tool_versions
-- Every version of the tools of an app, newest first.
select v.app, v.name, v.digest, v.description, v.server, v.implementation, v.hints, v.published_at,
  row_number() over (partition by v.name order by v.published_at desc) = 1 as newest,
  row_number() over (partition by v.name order by v.published_at) > 1 as changed
from known_tool v
where v.app = $1
order by v.published_at desc, v.name
limit $2


-- name: forget_tool_servers
delete from tool_server where worker_id = $1


-- name: list_tool_servers
-- As the workers that are there have them.
select s.app, s.name, w.name as worker, s.state, s.since, s.reason, s.tools
from tool_server s
join worker w on w.id = s.worker_id
where w.stopped_at is null and w.expires_at > (select plane_now())
order by s.app, s.name, w.name
limit 1000


-- name: record_tool_server
with forgotten as (
  delete from tool_server s where not exists (select from worker w where w.id = s.worker_id)
)
insert into tool_server (app, name, worker_id, state, reason, tools)
select $1, $2, w.id, $4, $5, $6 from worker w where w.id = $3
on conflict (app, name, worker_id) do update set
  state = excluded.state, reason = excluded.reason, tools = excluded.tools,
  since = case when tool_server.state = excluded.state then tool_server.since else plane_now() end


-- name: get_confirmation
select c.id, c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk, c.note, c.confirmed_by, c.created_at,
  c.revoked_at, c.revoked_by,
  coalesce(c.digest = (
    select v.digest from known_tool v where v.app = c.app and v.name = c.tool_name order by v.published_at desc limit 1
  ), false) as current
from tool_confirmation c
where c.id = $1


-- name: active_confirmations
-- What counts when a call is judged. What was confirmed about an older version is found by its digest, and by no newer one.
select c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk
from tool_confirmation c
where c.revoked_at is null


-- name: insert_confirmation
insert into tool_confirmation (
  org_id, id, app, tool_name, digest, read_only, idempotent, risk, note, confirmed_by, confirmed_by_id, version)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)


-- name: list_confirmations
select c.id, c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk, c.note, c.confirmed_by, c.created_at,
  c.revoked_at, c.revoked_by,
  coalesce(c.digest = (
    select v.digest from known_tool v where v.app = c.app and v.name = c.tool_name order by v.published_at desc limit 1
  ), false) as current
from tool_confirmation c
where ($1::timestamptz is null or (c.created_at, c.id) < ($1, $2::uuid))
  and (not $4::boolean or c.revoked_at is null)
order by c.created_at desc, c.id desc
limit $3


-- name: raise_confirmation_version
update org set confirmation_version = confirmation_version + 1 where id = $1
returning confirmation_version


-- name: revoke_confirmation
-- What holds for this tool, if anything, holds no more.
update tool_confirmation set revoked_at = plane_now(), revoked_by = $3, revoked_by_id = $4, revoked_version = $5
where app = $1 and tool_name = $2 and revoked_at is null
returning id
