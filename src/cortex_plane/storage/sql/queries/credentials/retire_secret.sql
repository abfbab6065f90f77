update signing_secret set retire_at = plane_now() + $3::interval
where purpose = $1 and retire_at is null and created_at <= (select plane_now()) - $2::interval
returning retire_at
