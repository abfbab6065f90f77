update session set held_at = null, hold_reason = null, revision = revision + 1
where id = $1 and held_at is not null
returning id
