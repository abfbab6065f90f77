select org_id, id, user_account_id, approval_id, version, encode(input_hash, 'hex') as input_hash, expires_at, token_hash
from approval_token where mac is null order by id limit $1
