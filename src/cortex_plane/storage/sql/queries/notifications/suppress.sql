update channel_mapping set suppressed_at = plane_now(), suppressed_reason = $2
where id = $1 and suppressed_at is null
returning id
