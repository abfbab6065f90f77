delete from identity_guess where org_id = $1 and connection_id = $2 and forget_at <= (select plane_now())
