select org_id, id, user_account_id, approval_id, version, encode(input_hash, 'hex') as input_hash, expires_at, token_hash, mac
from approval_token where used_at is null
