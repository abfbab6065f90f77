select a.atlas_id, a.name, a.version as newest, a.published_by, a.published_at,
  (select h.version from atlas_version h
   where h.org_id = a.org_id and h.atlas_id = a.atlas_id and h.retired_at is null order by h.number desc limit 1) as holds,
  (select count(*) from atlas_version v where v.org_id = a.org_id and v.atlas_id = a.atlas_id) as versions
from atlas_version a
where a.atlas_id = $1
order by a.number desc
limit 1
