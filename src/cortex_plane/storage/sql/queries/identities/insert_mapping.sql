insert into channel_mapping (
  org_id, id, connection_id, user_account_id, channel_type, channel_user_id, metadata, verified_at, proven_at, mac)
select $1, $2, c.id, $4, c.channel_type, $5, $6, case when $7::boolean then plane_now() end,
  case when $7 then plane_now() end, $8
from channel_connection c where c.org_id = $1 and c.id = $3
