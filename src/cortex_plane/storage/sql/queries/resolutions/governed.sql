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
