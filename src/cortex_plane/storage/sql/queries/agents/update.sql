update agent
set team_id = coalesce($2, team_id), name = coalesce($3, name), role = coalesce($4, role),
    status = coalesce($5, status),
    description = case when $6::text is null then description else nullif($6, '') end,
    channel_permissions = coalesce($7, channel_permissions), config_version = $8,
    revision = revision + 1, updated_at = plane_now()
where id = $1
