select org_id, id, user_account_id, approval_id, version, encode(input_hash, 'hex') as input_hash, readable_time(expires_at) as expires_at, token_hash, mac,
  used_at is null as live
from approval_token where not $1::boolean or mac is null order by id limit $2
