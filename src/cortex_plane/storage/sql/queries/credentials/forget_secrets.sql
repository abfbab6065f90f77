delete from signing_secret where purpose = $1 and retire_at <= (select plane_now()) + $2::interval
