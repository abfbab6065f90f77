select org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, created_at,
  verified_at is not null as verified, mac
from channel_mapping where connection_id = $1 and channel_user_id = $2 and verified_at is not null
