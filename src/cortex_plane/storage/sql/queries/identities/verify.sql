-- An address that took no mail before takes it now: its link was just opened.
update channel_mapping set verified_at = coalesce(verified_at, plane_now()), proven_at = coalesce(proven_at, plane_now()),
  suppressed_at = null, suppressed_reason = null, mac = $5
where id = $1 and connection_id = $2 and user_account_id = $3 and channel_user_id = $4 and removed_at is null
returning verified_at
