insert into identity_code (org_id, id, user_account_id, mapping_id, code_hash, purpose, issued_by, expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
