update org
set name = coalesce($2, name), settings = coalesce($3, settings), revision = revision + 1,
    updated_at = plane_now()
where $1::integer is null or revision = $1
returning id, slug, name, settings, revision, created_at, updated_at
