select id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at
from channel_mapping
where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid)) and user_account_id = $4 and removed_at is null
order by created_at desc, id desc
limit $3
