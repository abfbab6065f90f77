insert into login_link (org_id, id, user_account_id, secret_hash, expires_at, issued_by, key_id, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8)
