select org_id, id, user_account_id, kind, roles, permissions, platform, expires_at, secret_hash
from api_key where mac is null order by id limit $1
