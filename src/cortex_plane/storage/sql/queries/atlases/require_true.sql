-- A version, and the retired ones after it: had they not been retired, no new session were bound to this one.
select n.org_id, n.atlas_id, n.version, n.number, n.digest, n.access, n.api_keys, n.retired_at is not null as retired, n.mac
from atlas_version a
join atlas_version n on n.org_id = a.org_id and n.atlas_id = a.atlas_id
  and (n.number = a.number or (n.number > a.number and n.retired_at is not null))
where a.atlas_id = $1 and a.version = $2
