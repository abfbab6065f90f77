delete from browser_session where user_account_id = $1
