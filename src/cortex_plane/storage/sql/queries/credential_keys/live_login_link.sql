select org_id, id, user_account_id, key_id, expires_at, secret_hash, mac
from login_link where used_at is null
