-- name: calls
-- The calls of a time span, newest first, with what policies look at: the tool as it was published for the call, the
-- agent where it stands now, the demands of the job; and what was answered about it then.
select c.id, c.job_id, c.tool_name, c.arguments, c.created_at, a.slug as agent,
  array_remove(array[t.id, t.parent_id], null) as teams, s.kind as session_kind, j.policies as request_policies,
  coalesce(x.risk, v.risk) as risk, case when x.call_id is not null then known_risk(c.org_id, c.tool_name) end as known_risk,
  coalesce(x.claims_read_only, v.read_only)
    and not coalesce(w.skill_config -> 'side_effect_tools' ? c.tool_name, false) as read_only,
  z.verdict as recorded_verdict, z.rule as recorded_rule
from tool_call c
join job j on j.org_id = c.org_id and j.id = c.job_id
join agent a on a.org_id = j.org_id and a.id = j.agent_id
join team t on t.org_id = a.org_id and t.id = a.team_id
join session s on s.org_id = j.org_id and s.id = j.session_id
join agent_version w on w.org_id = j.org_id and w.agent_id = j.agent_id and w.version = j.agent_version
left join tool_version v on v.app = j.app and v.name = c.tool_name and v.digest = c.tool_digest
left join external_call x on x.org_id = c.org_id and x.call_id = c.id
left join call_authorization z on z.org_id = c.org_id and z.id = c.authorization_id
where c.created_at >= $1 and c.created_at < $2
order by c.created_at desc, c.id desc
limit $3


-- name: now
select plane_now()
