with reminded as (
  update approval_request r
  set reminded_at = plane_now(), next_action_at = least(r.deadline, r.escalate_at[r.escalation_level + 1])
  where r.id = $1 and r.status = 'pending' and r.reminded_at is null
  returning org_id, id)
insert into approval_event (org_id, approval_id, event_type, payload, created_at)
select org_id, id, 'reminded', '{}', plane_now() from reminded
returning approval_id
