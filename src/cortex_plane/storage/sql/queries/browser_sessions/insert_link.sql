insert into login_link (org_id, id, user_account_id, secret_hash, expires_at, issued_by, key_id)
values ($1, $2, $3, $4, plane_now() + $5::interval, $6, $7)
returning expires_at
