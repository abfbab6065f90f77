select id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at
from channel_mapping
where id = $1 and removed_at is null
