select u.display_name from login_link l join user_account u on u.id = l.user_account_id
where l.id = $1 and l.used_at is null and l.expires_at > plane_now() and u.deactivated_at is null
