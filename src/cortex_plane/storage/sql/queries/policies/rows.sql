select position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing
from policy where version = $1
order by position
limit $2
