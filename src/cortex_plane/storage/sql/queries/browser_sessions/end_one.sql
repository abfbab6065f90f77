delete from browser_session where id = $1 and user_account_id = $2 returning id
