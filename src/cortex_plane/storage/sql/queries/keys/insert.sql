insert into api_key (
  org_id, id, name, kind, user_account_id, roles, platform, secret_hash, last_characters, expires_at, made_with,
  permissions, owner_id, mac)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, person_behind($1, $13), $14)
returning id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
