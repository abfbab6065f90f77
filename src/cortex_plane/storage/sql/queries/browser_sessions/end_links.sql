delete from login_link where user_account_id = $1 and used_at is null
returning id
