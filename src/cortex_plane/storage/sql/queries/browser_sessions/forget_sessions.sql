delete from browser_session
where user_account_id = $1 and (expires_at <= plane_now() or last_seen_at + $2::interval <= plane_now())
