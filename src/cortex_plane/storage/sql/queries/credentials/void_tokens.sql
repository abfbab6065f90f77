update approval_token set used_at = plane_now() where user_account_id = $1 and used_at is null
returning id
