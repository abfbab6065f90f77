-- name: current_version
select policies_version($1)


-- name: get_policy_version
select version, source, digest, rows, note, applied_by, created_at from policy_version where version = $1


-- name: insert_policy_version
insert into policy_version (org_id, version, source, digest, rows, note, applied_by, applied_by_id)
values ($1, $2, $3, $4, $5, $6, $7, $8)


-- name: insert_rows
insert into policy (org_id, version, position, level, team_id, team, name, action_type, target, effect, condition,
  required_clearance, template, timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels,
  quorum, escalation_seconds, escalate_to, standing, reason)
select $1, $2, position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing, reason
from jsonb_to_recordset($3) as r (
  position integer, level text, team_id uuid, team text, name text, action_type text, target text, effect text,
  condition text, required_clearance integer, template text, timeout_seconds integer, reminder_seconds integer,
  approvers jsonb, on_deny text, self_approval boolean, final boolean, channels text[], quorum jsonb,
  escalation_seconds integer, escalate_to jsonb, standing boolean, reason text)


-- name: list_deciding_members
-- Which of these could decide something at all.
select id from user_account where id = any ($1) and deactivated_at is null and roles <> '{guest}'


-- name: list_past_calls
-- The calls of a time span, newest first, with what policies look at: the tool as it was published for the call, the
-- agent where it stands now, the demands of the job; and what was answered about it then.
select c.id, c.job_id, c.tool_name, c.arguments, c.created_at, a.slug as agent,
  array_remove(array[t.id, t.parent_id], null) as teams, s.kind as session_kind, j.policies as request_policies,
  coalesce(x.risk, v.risk) as risk, case when x.call_id is not null then known_risk(c.org_id, c.tool_name) end as known_risk,
  coalesce(x.claims_read_only, v.read_only)
    and not coalesce(w.skill_config -> 'side_effect_tools' ? c.tool_name, false) as read_only,
  c.verdict as recorded_verdict, c.rule as recorded_rule,
  exists (select from session_atlas b where b.org_id = j.org_id and b.session_id = j.session_id) as governed
from tool_call c
join job j on j.org_id = c.org_id and j.id = c.job_id
join agent a on a.org_id = j.org_id and a.id = j.agent_id
join team t on t.org_id = a.org_id and t.id = a.team_id
join session s on s.org_id = j.org_id and s.id = j.session_id
join agent_version w on w.org_id = j.org_id and w.agent_id = j.agent_id and w.version = j.agent_version
left join known_tool v on v.app = j.app and v.name = c.tool_name and v.digest = c.tool_digest
left join external_call x on x.org_id = c.org_id and x.call_id = c.id
where c.created_at >= $1 and c.created_at < $2 and c.created_at > '-infinity' -- its index
  and c.tool_name <> 'plane.step' -- policies do not look at steps of code
order by c.created_at desc, c.id desc
limit $3


-- name: list_people
-- Who could decide something: active members, with what they may and where they stand.
select id, display_name as name, clearance, roles from user_account
where deactivated_at is null and roles <> '{guest}'


-- name: list_policy_versions
select version, digest, rows, note, applied_by, created_at from policy_version
where $1::bigint is null or version < $1
order by version desc
limit $2


-- name: list_rows
select position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing, reason
from policy where version = $1
order by position
limit $2


-- name: lock_platform_policies
select lock_platform_policies()


-- name: lock_policy_version
-- The org stands still while its rows are replaced.
select o.policy_version, (select coalesce(max(v.version), 0) from policy_version v where v.org_id = o.id) as newest,
  coalesce(o.settings ->> 'policy_changes' = 'approval', false) as asks
from org o where o.id = $1 for no key update of o


-- name: platform_rows
select position, name, action_type, target, effect, condition, required_clearance, template, timeout_seconds,
  reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds, escalate_to, standing,
  reason
from platform_policy
order by position


-- name: policies_in_force
select id as org_id, policy_version, policy_mac from org where id = $1


-- name: replace_platform_policies
select replace_platform_policies($1)


-- name: set_policy_version
update org set policy_version = $2, policy_mac = $3 where id = $1


-- name: sign_policy_version
update policy_version set mac = $2 where version = $1


-- name: simulation_start
select plane_now()


-- name: version_mac
select mac from policy_version where version = $1
