update channel_mapping set suppressed_at = null, suppressed_reason = null
where id = $1 and suppressed_at is not null
