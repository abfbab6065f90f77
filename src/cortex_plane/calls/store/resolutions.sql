-- name: count_live
-- How many resolutions of a session hold, counted up to $2.
select count(*) from (
  select from resolution r where r.session_id = $1 and r.expires_at > (select plane_now()) limit $2) live


-- name: get
-- For whoever asked; with null for anybody who sees the whole org.
select r.id, r.trace_id, r.session_id, r.request, case when r.emptied_at is null then r.answer end as answer, r.atlases,
  r.expires_at, r.expires_at <= plane_now() as expired
from resolution r where r.id = $1 and ($2::uuid is null or r.asker = $2)


-- name: governed
-- What the permissions of a session depend on: its agent as its newest job has it, and what is published for its app.
select s.kind, a.slug as agent, array_remove(array[t.id, t.parent_id], null) as teams, v.skill_config,
  policies_version(s.org_id) as policies, session_bound(s.org_id, s.id) as bound, plane_now() as now, j.policies as request_policies
from session s
join agent a on a.org_id = s.org_id and a.id = s.agent_id
join team t on t.org_id = a.org_id and t.id = a.team_id
left join lateral (
  select j.agent_version, j.policies from job j where j.org_id = s.org_id and j.session_id = s.id
  order by j.created_at desc, j.id desc limit 1) j on true
join agent_version v on v.org_id = a.org_id and v.agent_id = a.id and v.version = coalesce(j.agent_version, a.config_version)
where s.id = $1 and ($2::uuid is null or $2 in (s.user_account_id, s.opened_by))


-- name: heard
-- Whether this goal was named in the session before.
select exists (select from resolution r where r.session_id = $1 and r.goal_hash = $2)


-- name: insert
insert into resolution (org_id, id, trace_id, session_id, asker, goal_hash, request, answer, atlases, expires_at, created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)


-- name: tools
-- The newest version of each tool of an app.
select distinct on (name) name, digest, read_only, risk, server
from tool_version where app = $1
order by name, published_at desc
limit 1000


-- name: under
-- The resolution that a call was executed under; no row where there is none.
select c.resolution_id from resolution_call c where c.call_id = $1
