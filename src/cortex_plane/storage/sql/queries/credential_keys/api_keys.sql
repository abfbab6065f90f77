select org_id, id, user_account_id, kind, roles, permissions, platform, readable_time(expires_at) as expires_at, secret_hash, mac,
  revoked_at is null as live
from api_key where not $1::boolean or mac is null order by id limit $2
