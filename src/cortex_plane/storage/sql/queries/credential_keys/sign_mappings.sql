update channel_mapping m set mac = g.mac from unnest($1::uuid[], $2::bytea[]) as g (id, mac)
where m.id = g.id and m.mac is null
