select org_id, id, user_account_id, key_id, expires_at, secret_hash
from login_link where mac is null order by id limit $1
