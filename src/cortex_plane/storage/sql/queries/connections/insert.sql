insert into channel_connection (org_id, id, channel_type, name, config, sealed) values ($1, $2, $3, $4, $5, $6)
returning id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at
