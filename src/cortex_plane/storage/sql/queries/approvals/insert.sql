-- What asks whether a call happened asks those who let it be sent: by the request of that call, or by the one with which a standing
-- approval was given; whoever shaped the call of that one did not shape this one.
with settled as (
  select r.id, r.required_clearance, r.approvers, r.self_approval, r.quorum,
    case when a.own then r.causes else '{}' end as causes, case when a.own then r.caused else '[]' end as caused
  from (
    select i.approval_id, true from approval_invocation i where i.call_id = $34
    union all
    select s.approval_id, false from standing_use u join standing_approval s on s.org_id = u.org_id and s.id = u.standing_id
    where u.call_id = $34) a (id, own)
  join approval_request r on r.org_id = $1 and r.id = a.id
  where $3::text = 'uncertain_effect' and r.kind = 'call' and r.status = 'approved'
  order by a.own desc, r.resolved_at desc limit 1)
, asked as (
  insert into approval_request (org_id, id, kind, session_id, job_id, agent_id, step_index, action_type, tool_name,
    tool_digest, target, arguments, input_hash, risk, action_summary, agent_says, asked_for, question, rule,
    policy_version, template, required_clearance, timeout_seconds, approvers, on_deny, self_approval, owner_id, caused_by,
    causes, terms_hash, requested_at, deadline, remind_at, next_action_at, quorum, escalations, escalate_at, channels, standing,
    action, details, caused, settles)
  values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12::text::jsonb, $13, $14, $15, $16, $17, $18, $19, $20, $21,
    coalesce((select s.required_clearance from settled s), $22), $23, coalesce((select s.approvers from settled s), $24), $25,
    coalesce((select s.self_approval from settled s), $26), $27, $28,
    array(select unnest($29::uuid[]) union select unnest(s.causes) from settled s), $30, $31::timestamptz, $32::timestamptz, $33::timestamptz,
    least($32::timestamptz, $33::timestamptz, ($37::timestamptz[])[1]),
    coalesce((select s.quorum from settled s), $35), $36, $37::timestamptz[], $38::text[], $39, $40,
    $41, merge_caused($42, coalesce((select s.caused from settled s), '[]')), (select s.id from settled s))
  returning org_id, id, requested_at)
, told as (
  insert into approval_event (org_id, approval_id, event_type, channel, payload, created_at)
  select org_id, id, kind, channel, '{}', requested_at
  from asked, (values ('requested', null), ('dispatched', 'dashboard')) v (kind, channel))
insert into approval_invocation (org_id, approval_id, call_id, job_id) values ($1, $2, $34, $5)
