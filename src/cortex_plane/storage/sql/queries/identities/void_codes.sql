delete from identity_code where user_account_id = $1 and used_at is null
returning id
