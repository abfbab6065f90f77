select id, channel_type, name, config, sealed, disabled_at, plane_now() as now from channel_connection where id = $1
