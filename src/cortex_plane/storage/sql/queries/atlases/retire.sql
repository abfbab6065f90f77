update atlas_version set retired_at = plane_now(), retired_by = $3
where atlas_id = $1 and version = $2 and retired_at is null
returning version
