insert into approval_event (org_id, approval_id, event_type, channel, actor_member_id, actor, idempotency_key, payload,
  created_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, plane_now())
