update api_key set revoked_at = plane_now() where user_account_id = $1 and revoked_at is null
returning id
