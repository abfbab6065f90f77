with asked as (
  insert into approval_request (org_id, id, kind, session_id, job_id, agent_id, step_index, action_type, tool_name,
    tool_digest, target, arguments, input_hash, risk, action_summary, agent_says, asked_for, question, rule,
    policy_version, template, required_clearance, timeout_seconds, approvers, on_deny, self_approval, owner_id, caused_by,
    causes, terms_hash, requested_at, deadline, remind_at, next_action_at, quorum, escalations, escalate_at, channels, standing,
    action, details, caused)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14, $15, $16, $17, $18, $19, $20, $21, $22,
    $23, $24, $25, $26, $27, $28, $29::uuid[], $30, $31::timestamptz, $32::timestamptz, $33::timestamptz,
    least($32::timestamptz, $33::timestamptz, ($37::timestamptz[])[1]), $35, $36, $37::timestamptz[], $38::text[], $39, $40,
    $41, $42)
  returning org_id, id, requested_at)
, told as (
  insert into approval_event (org_id, approval_id, event_type, channel, payload, created_at)
  select org_id, id, kind, channel, '{}', requested_at
  from asked, (values ('requested', null), ('dispatched', 'dashboard')) v (kind, channel))
insert into approval_invocation (org_id, approval_id, call_id, job_id) values ($1, $2, $34, $5)
