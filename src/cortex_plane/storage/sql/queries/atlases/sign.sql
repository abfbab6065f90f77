update atlas_version set mac = $3 where atlas_id = $1 and version = $2
