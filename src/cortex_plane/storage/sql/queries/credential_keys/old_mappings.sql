select org_id, id, connection_id, channel_user_id, user_account_id, verified_at is not null as verified
from channel_mapping where mac is null and removed_at is null order by id limit $1
