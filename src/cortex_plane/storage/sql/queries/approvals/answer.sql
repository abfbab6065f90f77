with answered as (
  update approval_request
  set status = $2, resolved_at = plane_now(), resolved_by = $3, resolved_by_name = $4, resolution_reason = $5,
    resolved_via = $6
  where id = $1 and status = 'pending' and kind = 'uncertain_effect'
  returning org_id, id)
insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, payload, created_at)
select org_id, id, 'answered', $6, $3, $4, jsonb_build_object('verdict', $7::text, 'note', $5::text), plane_now() from answered
returning approval_id
