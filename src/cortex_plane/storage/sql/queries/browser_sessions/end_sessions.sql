delete from browser_session where user_account_id = $1 and ($2::uuid is null or id <> $2) returning id
