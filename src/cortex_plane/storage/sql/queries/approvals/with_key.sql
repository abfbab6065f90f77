select event_type, payload, actor_member_id from approval_event where approval_id = $1 and idempotency_key = $2
