select org_id, id, user_account_id, key_id, expires_at, secret_hash
from browser_session where mac is null order by id limit $1
