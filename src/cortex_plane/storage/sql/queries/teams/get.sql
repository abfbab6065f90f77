select id, slug, name, parent_id, revision, created_at, updated_at from team where id = $1 or slug = $2
