-- What ended lately, of what this person sees.
select a.id, a.kind, a.status, a.version, a.session_id, a.job_id, a.agent_id, a.agent, a.agent_name, a.step_index,
  a.action_type, a.tool_name, a.tool_digest, a.target, null as original_arguments, a.input_hash, a.invocations, a.risk,
  a.action_summary, null as agent_says, left(a.asked_for, 200) as asked_for, left(a.question, 200) as question, a.rule,
  a.policy_version, a.template, a.required_clearance, a.approvers, a.on_deny, a.self_approval, a.owner_id, a.caused_by, a.causes,
  a.escalation_level, a.channels_dispatched, a.requested_at, a.deadline, a.reminded_at, a.resolved_at, a.resolved_by,
  a.resolved_by_name, a.resolution_reason, a.resolved_via, a.created_at, a.quorum, a.votes_for, a.delegated, a.standing,
  a.action, null as details, a.settles, a.escalations, a.escalate_at,
  case when large.it then null else a.arguments end as arguments,
  case when large.it then left(a.arguments::text, 2000) end as excerpt
from approval_shown a
cross join lateral (select octet_length(a.arguments::text) > 2000 as it) large
where a.resolved_at is not null
  and ($1::uuid is null or $1 in (a.user_account_id, a.opened_by) or a.approvers -> 'members' ? $1::text
    or a.approvers -> 'roles' ?| (select u.roles from user_account u where u.id = $1))
order by a.resolved_at desc
limit $2
