select escalations -> escalation_level from approval_request where id = $1 and status = 'pending'
