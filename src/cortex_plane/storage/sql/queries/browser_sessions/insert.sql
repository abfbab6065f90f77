insert into browser_session (org_id, id, user_account_id, secret_hash, expires_at, key_id)
values ($1, $2, $3, $4, plane_now() + $5::interval, $6)
