select u.display_name, l.org_id, l.id, l.user_account_id, l.key_id, l.expires_at, l.secret_hash, l.mac
from login_link l join user_account u on u.id = l.user_account_id
where l.id = $1 and l.used_at is null and l.expires_at > plane_now() and u.deactivated_at is null
  and (l.key_id is null or exists (
    select from api_key k where k.id = l.key_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > plane_now())))
