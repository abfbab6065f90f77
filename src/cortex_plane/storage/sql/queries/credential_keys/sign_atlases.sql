update atlas_version a set mac = g.mac from unnest($1::text[], $2::text[], $3::bytea[]) as g (atlas_id, version, mac)
where a.atlas_id = g.atlas_id and a.version = g.version and a.mac is null
