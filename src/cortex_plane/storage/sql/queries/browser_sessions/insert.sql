insert into browser_session (org_id, id, user_account_id, secret_hash, expires_at, key_id, mac)
values ($1, $2, $3, $4, $5, $6, $7)
