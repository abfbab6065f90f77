insert into channel_connection (org_id, id, channel_type, name) values ($1, $2, $3, $4)
returning id, channel_type, name, disabled_at, revision, created_at, updated_at
