select org_id, atlas_id, version, number, digest, access, api_keys, retired_at is not null as retired
from atlas_version where mac is null order by atlas_id, number limit $1
