update member_absence set cancelled_at = plane_now()
where id = $1 and cancelled_at is null and ends_at > (select plane_now())
returning id
