-- Every row of every version, with the names in it as they were looked up; as text, because whoever wrote it may have written anything.
select p.version, to_jsonb(r)::text as row
from policy p cross join lateral (
  select p.position, p.level, p.team_id, p.team, p.name, p.action_type, p.target, p.effect, p.condition, p.required_clearance,
    p.template, p.timeout_seconds, p.reminder_seconds, p.approvers, p.on_deny, p.self_approval, p.final, p.channels, p.quorum,
    p.escalation_seconds, p.escalate_to, p.standing) r
order by p.org_id, p.version, p.position
