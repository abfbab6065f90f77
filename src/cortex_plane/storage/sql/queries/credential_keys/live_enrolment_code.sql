select org_id, id, user_account_id, issuer_id, key_id, expires_at, code_hash, mac
from enrolment_code where used_at is null
