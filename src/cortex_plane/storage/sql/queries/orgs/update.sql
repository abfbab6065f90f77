update org
set name = coalesce($2, name), settings = settings || coalesce($3::jsonb, '{}'), revision = revision + 1,
    updated_at = plane_now()
where $1::integer is null or revision = $1
returning id, slug, name, settings, revision, created_at, updated_at
