select a.atlas_id, a.version, a.number, a.digest, a.name, a.description, a.gates, a.warnings, a.access, a.api_keys, a.published_by,
  a.published_at, a.retired_at, a.retired_by,
  a.retired_at is null and not exists (
    select from atlas_version n
    where n.org_id = a.org_id and n.atlas_id = a.atlas_id and n.retired_at is null and n.number > a.number) as holds
from atlas_version a
where a.atlas_id = $1 and a.version = $2
