insert into policy (org_id, version, position, level, team_id, team, name, action_type, target, effect, condition,
  required_clearance, template, timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels,
  quorum, escalation_seconds, escalate_to, standing)
select $1, $2, position, level, team_id, team, name, action_type, target, effect, condition, required_clearance, template,
  timeout_seconds, reminder_seconds, approvers, on_deny, self_approval, final, channels, quorum, escalation_seconds,
  escalate_to, standing
from jsonb_to_recordset($3) as r (
  position integer, level text, team_id uuid, team text, name text, action_type text, target text, effect text,
  condition text, required_clearance integer, template text, timeout_seconds integer, reminder_seconds integer,
  approvers jsonb, on_deny text, self_approval boolean, final boolean, channels text[], quorum jsonb,
  escalation_seconds integer, escalate_to jsonb, standing boolean)
