select count(*) from channel_mapping where user_account_id = $1 and removed_at is null
