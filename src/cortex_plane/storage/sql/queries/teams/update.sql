update team set name = $3, revision = revision + 1, updated_at = plane_now()
where id = $1 and ($2::integer is null or revision = $2)
returning id, slug, name, parent_id, revision, created_at, updated_at
