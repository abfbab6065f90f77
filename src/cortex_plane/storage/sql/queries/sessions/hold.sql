update session set held_at = plane_now(), hold_reason = $2, revision = revision + 1
where id = $1 and held_at is null
returning id
