select org_id, id, connection_id, channel_user_id, user_account_id, verified_at is not null as verified, mac
from channel_mapping where removed_at is null
