insert into standing_approval (org_id, id, session_id, agent_id, tool_name, tool_digest, input_hash, condition, max_calls,
  expires_at, granted_by, granted_by_id, approval_id, required, reason, created_at)
select r.org_id, $2, r.session_id, r.agent_id, r.tool_name, r.tool_digest, $4, $5, $6, $7, $8, $9, r.id,
  jsonb_build_object('rule', r.rule, 'template', r.template, 'clearance', r.required_clearance, 'approvers', r.approvers,
    'version', $11::integer),
  $10, $12
from approval_request r
where r.org_id = $1 and r.id = $3
