update channel_mapping set removed_at = plane_now(), verified_at = null
where id = $1 and removed_at is null
returning id
