update session
set title = case when $2::text is null then title else nullif($2, '') end, context = coalesce($3, context),
    context_by = case when $3::jsonb is null or $4::uuid = any (context_by) then context_by else context_by || $4 end,
    revision = revision + 1, updated_at = plane_now()
where id = $1
