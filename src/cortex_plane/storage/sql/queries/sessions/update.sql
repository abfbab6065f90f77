update session
set title = case when $2::text is null then title else nullif($2, '') end, context = coalesce($3, context),
    revision = revision + 1, updated_at = plane_now()
where id = $1
