select source from atlas_version where atlas_id = $1 and version = $2
