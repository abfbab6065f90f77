insert into team (org_id, id, slug, name, parent_id) values ($1, $2, $3, $4, $5)
returning id, slug, name, parent_id, revision, created_at, updated_at
