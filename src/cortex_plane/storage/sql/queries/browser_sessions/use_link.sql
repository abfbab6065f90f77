-- One of two that come at the same instant waits for the other's row, and then finds it used.
update login_link l set used_at = plane_now()
from user_account u
where l.id = $1 and l.used_at is null and l.expires_at > plane_now()
  and u.id = l.user_account_id and u.deactivated_at is null
returning u.id, u.display_name, u.roles, u.clearance, l.issued_by
