select org_id, atlas_id, version, number, digest, access, api_keys, retired_at is not null as retired, mac
from atlas_version where not $1::boolean or mac is null order by atlas_id, number limit $2
