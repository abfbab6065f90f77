-- An address that took no mail before takes it now: its link was just opened.
update channel_mapping set verified_at = coalesce(verified_at, plane_now()), proven_at = coalesce(proven_at, plane_now()),
  suppressed_at = null, suppressed_reason = null
where id = $1 and removed_at is null
returning verified_at
