update channel_connection set failing_since = plane_now() where id = $1 and failing_since is null
