select position, name, action_type, target, effect, condition, required_clearance, template, timeout_seconds,
  reminder_seconds, approvers, on_deny, self_approval, final
from platform_policy
order by position
