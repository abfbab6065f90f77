select id, name, kind, user_account_id as member_id, roles, platform, last_characters, expires_at, revoked_at,
  last_used_at, created_at
from api_key
where $1::timestamptz is null or (created_at, id) < ($1, $2::uuid)
order by created_at desc, id desc
limit $3
