select id, channel_type, name, config ->> 'url' as url, failing_since, disabled_at, disabled_reason, revision, created_at,
  updated_at
from channel_connection
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3
