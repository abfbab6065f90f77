select c.id, c.app, c.tool_name, c.digest, c.read_only, c.idempotent, c.risk, c.note, c.confirmed_by, c.created_at,
  c.revoked_at, c.revoked_by,
  coalesce(c.digest = (
    select v.digest from tool_version v where v.app = c.app and v.name = c.tool_name order by v.published_at desc limit 1
  ), false) as current
from tool_confirmation c
where c.id = $1
