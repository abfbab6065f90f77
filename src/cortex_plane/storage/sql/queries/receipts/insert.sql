insert into approval_receipt (org_id, approval_id, key_id, body, signature, created_at) values ($1, $2, $3, $4, $5, $6)
