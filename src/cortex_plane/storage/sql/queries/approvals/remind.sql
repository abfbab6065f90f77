with reminded as (
  update approval_request set reminded_at = plane_now(), next_action_at = deadline
  where id = $1 and status = 'pending' and reminded_at is null
  returning org_id, id)
insert into approval_event (org_id, approval_id, event_type, payload, created_at)
select org_id, id, 'reminded', '{}', plane_now() from reminded
returning approval_id
