-- What a policy looks at besides the call itself, and the schema that the call's tool had when it was asked for.
select a.slug as agent, array_remove(array[t.id, t.parent_id], null) as teams, s.kind as session_kind,
  array(
    select distinct coalesce(k.policies, '[]') from approval_invocation i
    join job k on k.org_id = i.org_id and k.id = i.job_id
    where i.org_id = r.org_id and i.approval_id = r.id) as request_policies,
  coalesce(v.parameters, x.parameters) as parameters,
  coalesce(v.read_only, false) and not coalesce(w.skill_config -> 'side_effect_tools' ? r.tool_name, false) as read_only
from approval_request r
join job j on j.org_id = r.org_id and j.id = r.job_id
join agent a on a.org_id = r.org_id and a.id = r.agent_id
join team t on t.org_id = a.org_id and t.id = a.team_id
join session s on s.org_id = r.org_id and s.id = r.session_id
join agent_version w on w.org_id = j.org_id and w.agent_id = j.agent_id and w.version = j.agent_version
left join tool_version v on v.app = j.app and v.name = r.tool_name and v.digest = r.tool_digest
left join external_tool x on j.kind = 'external' and x.org_id = r.org_id and x.name = r.tool_name and x.digest = r.tool_digest
where r.id = $1
