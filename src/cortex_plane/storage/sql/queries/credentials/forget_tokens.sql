delete from approval_token where expires_at <= (select plane_now()) - $1::interval
