select org_id, id, user_account_id, key_id, readable_time(expires_at) as expires_at, secret_hash, mac,
  used_at is null as live
from login_link where not $1::boolean or mac is null order by id limit $2
