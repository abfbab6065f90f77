select org_id, id, user_account_id, mapping_id, purpose, expires_at, code_hash, mac
from identity_code where used_at is null
