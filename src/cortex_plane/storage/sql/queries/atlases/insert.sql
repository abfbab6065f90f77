insert into atlas_version (org_id, atlas_id, version, number, digest, name, description, gates, source, manifest, warnings,
  access, api_keys, published_by, published_by_id)
select $1, $2, $3, coalesce(max(a.number), 0) + 1, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14
from atlas_version a where a.org_id = $1 and a.atlas_id = $2
