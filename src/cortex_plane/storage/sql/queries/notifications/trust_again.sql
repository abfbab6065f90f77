update channel_mapping m set suppressed_at = null, suppressed_reason = null
from notification n
where n.id = $1 and m.org_id = n.org_id and m.id = n.mapping_id and m.suppressed_at is not null
returning m.id
