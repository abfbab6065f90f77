insert into notification (org_id, id, kind, connection_id, channel_type, mapping_id, user_account_id, address, data,
  next_attempt_at, created_at)
select $1, $2, 'invitation', c.id, c.channel_type, $4, $5, $6, $7, t.at, t.at
from channel_connection c cross join (select plane_now() as at) t
where c.id = $3
returning id
