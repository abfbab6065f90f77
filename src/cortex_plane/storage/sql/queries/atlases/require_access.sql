select require_atlas_access($1, $2, $3, $4)
