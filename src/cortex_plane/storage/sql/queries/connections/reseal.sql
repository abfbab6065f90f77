update channel_connection set sealed = $2, revision = revision + 1, updated_at = plane_now() where id = $1
