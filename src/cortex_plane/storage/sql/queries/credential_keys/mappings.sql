select org_id, id, connection_id, channel_user_id, user_account_id, verified_at is not null as verified, mac, true as live
from channel_mapping where removed_at is null and (not $1::boolean or mac is null) order by id limit $2
