select id, slug, name, settings, revision, created_at, updated_at from org
