select org_id, id, user_account_id, mapping_id, purpose, readable_time(expires_at) as expires_at, code_hash, mac,
  used_at is null as live
from identity_code where not $1::boolean or mac is null order by id limit $2
