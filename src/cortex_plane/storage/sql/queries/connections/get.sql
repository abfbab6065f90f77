select id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at
from channel_connection where id = $1
