select org_id, id, user_account_id, mapping_id, purpose, expires_at, code_hash
from identity_code where mac is null order by id limit $1
