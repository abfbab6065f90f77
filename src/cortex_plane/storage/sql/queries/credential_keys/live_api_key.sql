select org_id, id, user_account_id, kind, roles, permissions, platform, expires_at, secret_hash, mac
from api_key where revoked_at is null
