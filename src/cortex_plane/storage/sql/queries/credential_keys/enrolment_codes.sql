select org_id, id, user_account_id, issuer_id, key_id, readable_time(expires_at) as expires_at, code_hash, mac,
  used_at is null as live
from enrolment_code where not $1::boolean or mac is null order by id limit $2
