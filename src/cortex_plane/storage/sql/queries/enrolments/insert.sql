insert into enrolment_code (org_id, id, user_account_id, code_hash, issuer_id, issued_by, key_id, expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
