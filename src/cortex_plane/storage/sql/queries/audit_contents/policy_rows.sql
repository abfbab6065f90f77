-- Every row of every version, with the names in it as they were looked up.
select version, position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing
from policy
order by org_id, version, position
