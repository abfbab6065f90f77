update channel_connection
set disabled_at = plane_now(), disabled_reason = $2, revision = revision + 1, updated_at = plane_now()
where id = $1 and disabled_at is null
returning name
