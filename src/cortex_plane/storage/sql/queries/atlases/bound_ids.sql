select atlas_id from session_atlas where session_id = $1 order by atlas_id
