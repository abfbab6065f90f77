select exists (
  select from channel_connection c
  where c.channel_type = 'webhook' and c.disabled_at is null and c.config ->> 'url' = $1)
