update identity_code c set used_at = plane_now()
from user_account u
where c.org_id = $1 and c.code_hash = $2 and c.purpose = 'sender' and c.used_at is null and c.expires_at > plane_now()
  and u.org_id = c.org_id and u.id = c.user_account_id and u.deactivated_at is null
returning c.org_id, c.id, c.user_account_id, c.mapping_id, c.purpose, c.expires_at, c.code_hash, c.mac, u.display_name
