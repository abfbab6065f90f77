select org_id, id, user_account_id, issuer_id, key_id, expires_at, code_hash
from enrolment_code where mac is null order by id limit $1
