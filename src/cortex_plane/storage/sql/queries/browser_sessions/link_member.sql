select user_account_id from login_link where id = $1
