-- One of two that come at the same instant waits for the other's row, and then finds it used.
update login_link l set used_at = plane_now()
from user_account u
where l.id = $1 and l.used_at is null and l.expires_at > plane_now()
  and u.id = l.user_account_id and u.deactivated_at is null
  and (l.key_id is null or exists (
    select from api_key k where k.id = l.key_id and k.revoked_at is null
      and (k.expires_at is null or k.expires_at > plane_now())))
returning u.id, u.display_name, u.roles, u.clearance, l.issued_by, l.key_id
