select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, made_with, permissions, created_at
from api_key
where ($1::timestamptz is null or (created_at, id) < ($1, $2::uuid))
  and ($4::uuid is null or user_account_id = $4)
order by created_at desc, id desc
limit $3
