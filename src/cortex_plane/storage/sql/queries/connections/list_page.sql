select id, channel_type, name, disabled_at, revision, created_at, updated_at from channel_connection
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3
