insert into approval_token (org_id, id, approval_id, user_account_id, notification_id, token_hash, version, input_hash,
  expires_at, mac)
values ($1, $2, $3, $4, $5, $6, $7, decode($8, 'hex'), $9, $10)
