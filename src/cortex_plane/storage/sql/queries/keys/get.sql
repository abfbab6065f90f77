select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
from api_key where id = $1
