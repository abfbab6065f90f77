select id, channel_type, name, disabled_at, revision, created_at, updated_at from channel_connection where id = $1
